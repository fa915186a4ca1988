"""The rules, one file for each kind of layer; importing this registers them."""

from sartor.sgd.gradients.rules import convolution, embedding, linear, normalisation
from sartor.sgd.gradients.rules.general import general

__all__ = ["convolution", "embedding", "general", "linear", "normalisation"]
