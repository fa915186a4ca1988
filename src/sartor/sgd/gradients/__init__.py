"""Per-example gradients: clipped sums from one forward and one backward pass.

>>> from sartor.sgd.gradients import PerExample
"""

from sartor.sgd.gradients.engine import MARGIN, PerExample
from sartor.sgd.gradients.kernels import Kernels
from sartor.sgd.gradients.owners import Owners
from sartor.sgd.gradients.parts import Formed, Implicit, Part, Product
from sartor.sgd.gradients.registry import Call, rule

__all__ = ["MARGIN", "Call", "Formed", "Implicit", "Kernels", "Owners", "Part", "PerExample", "Product", "rule"]
