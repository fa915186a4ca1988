"""Attacks on our own models, lower bounds that can refute a claimed epsilon, and replay with one holder zeroed.

Scores come in, bounds go out: `Scores` of any attack, what they say by themselves (`roc`, `auc`, `tpr_at`, `best_accuracy`, `bootstrap`),
and what they refute (`threshold_bound`, `one_run_bound_of`, `f_dp_bound_of`, `gaussian_bound`). `findings` puts them beside a plan's
promises. Attacks have modules of their own: `canaries`, `lira` and `rmia` (with `shadows`), `votes` for PATE and `clients` for
federated learning. `replay` runs a mechanism again without one holder.

All of it is about the training records themselves, and is sensitive where they are.
"""

from sartor.audit.bounds import bound_at, f_dp_bound, f_dp_bound_of, gaussian_bound, one_run_bound, one_run_bound_of, threshold_bound
from sartor.audit.findings import Findings, findings
from sartor.audit.replay import Replayed, replay
from sartor.audit.scores import Roc, Scores, auc, best_accuracy, bootstrap, permutation, roc, tpr_at, welch

__all__ = [
    "Findings",
    "Replayed",
    "Roc",
    "Scores",
    "auc",
    "best_accuracy",
    "bootstrap",
    "bound_at",
    "f_dp_bound",
    "f_dp_bound_of",
    "findings",
    "gaussian_bound",
    "one_run_bound",
    "one_run_bound_of",
    "permutation",
    "replay",
    "roc",
    "threshold_bound",
    "tpr_at",
    "welch",
]
