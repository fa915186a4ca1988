"""Weight: teachers hold people of one budget, or of neighbouring ones by the strictest, and their votes weigh by it.

Weights are those of the paper's appendix C, with the number of teachers as their sum: its algorithm 2 would multiply them by shares.
"""

from __future__ import annotations

import numpy as np

from sartor.pate.variants.pools import pools
from sartor.pate.variants.registry import Request, Treatment, register


@register("weight", apart=True)
def weight(asked: Request) -> Treatment:
    """A weight for each pool of teachers, by the strictest budget in it."""
    found = pools(asked)
    heavy = found.strictest / np.average(found.strictest, weights=found.size)
    return Treatment(
        asked.teachers,
        duplicates=1,
        begin=found.begin,
        end=found.end,
        weight=heavy[found.of_group],
        taking_part=found.size[found.of_group],
    )
