"""Recurrent layers that can be trained with privacy: `LSTM`, `GRU` and `RNN`, made of linear layers whose inside can be seen.

They take the arguments of their namesakes in `torch.nn`, return the same outputs and final states, begin with the same weights under the
same seed, and have the same state dictionary: weights can be loaded from `torch.nn.LSTM` and back. Sequences are padded, never packed, and
states are not projected (`proj_size`).

>>> import torch
>>> theirs, ours = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True), LSTM(3, 4, num_layers=2, batch_first=True)
>>> ours.load_state_dict(theirs.state_dict())
<All keys matched successfully>
>>> sequences = torch.randn(5, 6, 3)
>>> torch.allclose(ours(sequences)[0], theirs(sequences)[0], atol=1e-6)
True
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from sartor.errors import SartorError

State = tuple[Tensor, ...]


class _Recurrent(nn.Module):
    """Layers and directions over padded sequences; a subclass says what happens at one position.

    Every linear layer is called once for each position, on examples x features: what it returns is used while it is still in the cache, and
    the examples stand first, where per-example gradients look for them.
    """

    _gates: ClassVar[int]
    _states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        if min(input_size, hidden_size, num_layers) < 1:
            raise SartorError("input_size, hidden_size and num_layers must be at least 1.")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.directions = 2 if bidirectional else 1
        widths = [input_size] * self.directions + [self.directions * hidden_size] * (self.directions * (num_layers - 1))
        self.of_inputs = nn.ModuleList(skip_init(nn.Linear, width, self._gates * hidden_size, bias=bias) for width in widths)
        self.of_states = nn.ModuleList(skip_init(nn.Linear, hidden_size, self._gates * hidden_size, bias=bias) for _ in widths)
        self.drop = nn.Dropout(dropout)
        self.reset_parameters()
        self.register_state_dict_post_hook(_to_names_of_torch)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_from_names_of_torch)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Draw all weights anew, in the order of torch's layers."""
        for _, module, name in _names(self):
            nn.init.uniform_(module.get_parameter(name), -(self.hidden_size**-0.5), self.hidden_size**-0.5)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        """The last layer's output at every position, and the final state of every layer and direction."""
        if not isinstance(input, Tensor) or input.dim() != 3 or not input.shape[1 if self.batch_first else 0]:
            raise SartorError(
                f"{type(self).__name__} takes a batch of padded sequences, a tensor of three dimensions with at least one position; "
                "pad packed sequences, and read the output at each one's last position."
            )
        along = 1 if self.batch_first else 0
        outputs = list(input.unbind(along))
        begin, ends = self._begin(outputs[0], hx), []
        for layer in range(self.num_layers):
            found = []
            for place in range(layer * self.directions, (layer + 1) * self.directions):
                states, last = self._along(place, outputs, tuple(state[place] for state in begin))
                found.append(states)
                ends.append(last)
            outputs = found[0] if len(found) == 1 else [torch.cat(both, 1) for both in zip(*found, strict=True)]
            if layer < self.num_layers - 1:
                outputs = [self.drop(output) for output in outputs]
        final = tuple(torch.stack(states) for states in zip(*ends, strict=True))
        return torch.stack(outputs, along), final if self._states > 1 else final[0]

    def _begin(self, inputs: Tensor, hx: Any) -> State:
        shape = (self.num_layers * self.directions, len(inputs), self.hidden_size)
        if hx is None:
            return (inputs.new_zeros(shape),) * self._states
        given = tuple(hx) if self._states > 1 else (hx,)
        if len(given) != self._states or any(state.shape != shape for state in given):
            raise SartorError(f"{type(self).__name__} takes initial states of shape {shape}, {self._states} of them.")
        return given

    def _along(self, place: int, inputs: list[Tensor], state: State) -> tuple[list[Tensor], State]:
        """One layer in one direction: its state at every position, and its last one."""
        of_inputs, of_states, way = self.of_inputs[place], self.of_states[place], -1 if place % self.directions else 1
        found = []
        for given in inputs[::way]:
            state = self._step(of_inputs(given), of_states(state[0]), state)
            found.append(state[0])
        return found[::way], state

    def _step(self, given: Tensor, kept: Tensor, state: State) -> State:
        raise NotImplementedError


class LSTM(_Recurrent):
    """`torch.nn.LSTM` for private training; the state is a pair (h, c)."""

    _gates, _states = 4, 2

    def _step(self, given: Tensor, kept: Tensor, state: State) -> State:
        enter, keep, new, leave = (given + kept).chunk(4, 1)
        cell = torch.sigmoid(keep) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(cell), cell


class GRU(_Recurrent):
    """`torch.nn.GRU` for private training."""

    _gates = 3

    def _step(self, given: Tensor, kept: Tensor, state: State) -> State:
        (reset, update, new), (reset_kept, update_kept, new_kept) = given.chunk(3, 1), kept.chunk(3, 1)
        new = torch.tanh(new + torch.sigmoid(reset + reset_kept) * new_kept)
        return (new + torch.sigmoid(update + update_kept) * (state[0] - new),)


class RNN(_Recurrent):
    """`torch.nn.RNN` for private training."""

    _gates = 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", **others: Any) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise SartorError(f"nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}.")
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.nonlinearity = nonlinearity

    def _step(self, given: Tensor, kept: Tensor, state: State) -> State:
        return (torch.tanh(given + kept) if self.nonlinearity == "tanh" else torch.relu(given + kept),)


def _names(layers: _Recurrent) -> list[tuple[str, nn.Module, str]]:
    """Every parameter, in torch's order: its name there, and the linear layer here that owns it under which name."""
    found = []
    for place, pair in enumerate(zip(layers.of_inputs, layers.of_states, strict=True)):
        suffix = f"l{place // layers.directions}" + "_reverse" * (place % layers.directions)
        for kind in ("weight", "bias") if layers.bias else ("weight",):
            found += [(f"{kind}_{side}_{suffix}", module, kind) for side, module in zip(("ih", "hh"), pair, strict=True)]
    return found


def _own_names(layers: nn.Module) -> dict[str, str]:
    """Names in torch's layers, and the same parameters' names here."""
    assert isinstance(layers, _Recurrent)
    found = {}
    for number, (name, _, own) in enumerate(_names(layers)):
        place = number // (4 if layers.bias else 2)
        found[name] = f"{'of_inputs' if '_ih_' in name else 'of_states'}.{place}.{own}"
    return found


def _to_names_of_torch(layers: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, own in _own_names(layers).items():
        state[prefix + name] = state.pop(prefix + own)


def _from_names_of_torch(layers: nn.Module, state: dict[str, Any], prefix: str, *_others: Any) -> None:
    for name, own in _own_names(layers).items():
        if prefix + name in state:
            state[prefix + own] = state.pop(prefix + name)
