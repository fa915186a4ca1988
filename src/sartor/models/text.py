"""Networks for tokens, of which 0 is padding: (batch, length), or (batch, 2, length) for pairs. Batches come first in every call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sartor.errors import SartorError
from sartor.layers import LSTM


class EmbeddingClassifier(nn.Module):
    """The mean of the words' embeddings, then two linear layers; a pair is both means and their distance.

    One embedding and two linear layers, as the IDP-SGD paper has it for IMDB.
    """

    def __init__(self, vocabulary: int, classes: int, *, parts: int = 1, width: int = 16) -> None:
        super().__init__()
        self.parts = parts
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.hidden = nn.Linear(width if parts == 1 else 3 * width, width)
        self.activation = nn.ReLU()
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch."""
        # One call on all the tokens of an example keeps the batch in front, where per-example gradients look for it.
        flat = tokens.flatten(1)
        means = [
            mean_of_words(vectors, part != 0)
            for vectors, part in zip(self.embedding(flat).chunk(self.parts, 1), flat.chunk(self.parts, 1), strict=True)
        ]
        features = means[0] if self.parts == 1 else torch.cat([*means, (means[0] - means[1]).abs()], 1)
        out: Tensor = self.classifier(self.activation(self.hidden(features)))
        return out


class CharacterLSTM(nn.Module):
    """Characters through a three-layer LSTM of 128 units; a linear layer reads the output at the last character.

    Sizes are those of the IDP-SGD paper for surnames, which follow the Opacus tutorial that it names.
    """

    def __init__(self, vocabulary: int, classes: int, *, width: int = 64, hidden: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = LSTM(width, hidden, num_layers=layers, batch_first=True)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch."""
        outputs, _ = self.lstm(self.embedding(tokens))
        last = ((tokens != 0).sum(1) - 1).clamp(min=0)
        at_last = outputs.gather(1, last[:, None, None].expand(-1, 1, outputs.shape[2])).squeeze(1)
        out: Tensor = self.classifier(at_last)
        return out


class Attention(nn.Module):
    """Attention of several heads, from four linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """What each position reads from those that the mask allows."""
        query, key, value = (layer(states).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """The next states of a batch."""
        states = states + self.attention(self.before_attention(states), mask)
        out: Tensor = states + self.feed(self.before_feed(states))
        return out


class Transformer(nn.Module):
    """A small encoder with learned positions; the mean of its states is classified. A pair is read as one long text."""

    def __init__(self, vocabulary: int, length: int, classes: int, *, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.normalise = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of a batch."""
        flat = tokens.flatten(1)
        words = flat != 0
        positions = torch.arange(flat.shape[1], device=flat.device).expand_as(flat)
        states = self.embedding(flat) + self.position(positions)
        # An example without words would leave attention nothing to read, so there every position may be read.
        readable = words | ~words.any(1, keepdim=True)
        for layer in self.layers:
            states = layer(states, readable)
        out: Tensor = self.classifier(mean_of_words(self.normalise(states), words))
        return out


def mean_of_words(vectors: Tensor, words: Tensor) -> Tensor:
    """The mean of the vectors (batch, length, width) that stand for words; zero where there are none."""
    return (vectors * words[:, :, None]).sum(1) / words.sum(1, keepdim=True).clamp(min=1)


def embedding(*, shape: Sequence[int], classes: int, vocabulary: int) -> nn.Module:
    """The mean of embedded words, for texts and for pairs of texts."""
    _check("embedding", shape, pairs=True)
    return EmbeddingClassifier(vocabulary, classes, parts=len(shape))


def char_lstm(*, shape: Sequence[int], classes: int, vocabulary: int) -> nn.Module:
    """An LSTM over characters."""
    _check("char-lstm", shape, pairs=False)
    return CharacterLSTM(vocabulary, classes)


def transformer(*, shape: Sequence[int], classes: int, vocabulary: int) -> nn.Module:
    """A small transformer for texts and for pairs of texts."""
    _check("transformer", shape, pairs=True)
    return Transformer(vocabulary, math.prod(shape), classes)


def _check(model: str, shape: Sequence[int], *, pairs: bool) -> None:
    if not (len(shape) == 1 or (pairs and len(shape) == 2 and shape[0] == 2)):
        wanted = "(length,) or (2, length)" if pairs else "(length,)"
        raise SartorError(f"{model} needs tokens of shape {wanted}, not inputs of shape {tuple(shape)}.")
