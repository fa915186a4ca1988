"""Hugging Face classifiers, from a configuration and with random weights: nothing is downloaded."""

from __future__ import annotations

import copy
import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from sartor.errors import SartorError


class TokenClassifier(nn.Module):
    """A Hugging Face model for sequence classification that takes tokens and returns logits alone."""

    def __init__(self, model: nn.Module, padding: int) -> None:
        super().__init__()
        self.model, self.padding = model, padding
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch of tokens; a pair (batch, 2, length) is read as one long text."""
        flat = tokens.flatten(1)
        # Positions for every example: a single row of them, shared by the batch, would have no per-example gradient.
        positions = {"position_ids": torch.arange(flat.shape[1], device=flat.device).expand_as(flat)} if self._takes_positions else {}
        out: Tensor = self.model(input_ids=flat, attention_mask=(flat != self.padding).long(), **positions).logits
        return out


def from_config(config: Any, classes: int) -> nn.Module:
    """A sequence classifier with random weights from a `transformers` configuration."""
    try:
        library = importlib.import_module("transformers")
    except ImportError:
        raise SartorError('Hugging Face models need transformers: pip install "sartor[transformers]".') from None
    own = copy.deepcopy(config)
    own.num_labels = classes
    padding = getattr(own, "pad_token_id", None)
    return TokenClassifier(library.AutoModelForSequenceClassification.from_config(own), 0 if padding is None else int(padding))
