"""Training by stochastic gradient descent under a plan: draw, clip, sum, add noise, step."""

from sartor.errors import Exhausted
from sartor.run.account import Account, RunAccount
from sartor.run.stream import Stream
from sartor.sgd.checkpoint import NotCompared
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.members import Average, fit_members
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.options import Checkpoints, Evaluation, Execution, Tracking
from sartor.sgd.private import make_private, unwrap
from sartor.sgd.run import NotFinite, OutOfTurn
from sartor.sgd.training import Progress, Result, Sensitive, evaluate, fit

__all__ = [
    "Account",
    "Average",
    "Checkpoints",
    "Evaluation",
    "Execution",
    "Exhausted",
    "NotCompared",
    "NotFinite",
    "OutOfTurn",
    "PrivateLoader",
    "PrivateOptimizer",
    "Progress",
    "Result",
    "RunAccount",
    "Sensitive",
    "Stream",
    "Tracking",
    "evaluate",
    "fit",
    "fit_members",
    "make_private",
    "unwrap",
]
