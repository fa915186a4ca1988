"""Models: reference networks for the demonstrations, the reproductions and the tests, as plain torch modules.

Every one of them can be trained with per-example gradients: the batch is the first dimension in every call, no layer mixes examples, and no
activation works in place. Any other torch module that keeps to this will do as well.

>>> import sartor.models
>>> model = sartor.models.build("logistic", shape=(105,), classes=2)
"""

from __future__ import annotations

from sartor.models.hugging_face import from_config
from sartor.models.registry import available, build

__all__ = ["available", "build", "from_config"]
