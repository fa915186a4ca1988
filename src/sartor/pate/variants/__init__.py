"""The variants of individualized PATE: how budgets become places, weights and turns of teachers; one small module each."""

from __future__ import annotations

from sartor.pate.variants import standard, upsample, vanish, weight
from sartor.pate.variants.registry import Variant, find, variants

VARIANTS = variants()

__all__ = ["VARIANTS", "Variant", "find", "standard", "upsample", "vanish", "variants", "weight"]
