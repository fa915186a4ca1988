"""Layers and small networks of every kind, with inputs for them: what every way to form gradients is tried on."""

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import nn
from torch.nn.utils import parametrizations

from sartor.layers import GRU, LSTM, RNN


class Take(nn.Module):
    """The first output of a module with many."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)[0]


class Attention(nn.Module):
    def __init__(self, batch_first, kind=DPMultiheadAttention):
        super().__init__()
        self.inner, self.batch_first = kind(8, 2, batch_first=batch_first), batch_first

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.inner(x, x, x)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Scalar(nn.Module):
    """A 0-d parameter, a bias alone, and a parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift, self.unused = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return torch.tanh(x * self.scale + self.shift)


class Lora(nn.Linear):
    """A subclass that computes something else than its parent."""

    def __init__(self, wide, high):
        super().__init__(wide, high)
        self.down, self.up = nn.Parameter(torch.randn(2, wide)), nn.Parameter(torch.randn(high, 2))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class Twice(nn.Module):
    """One layer of each kind called twice, so that its gradients add up."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.conv = nn.Linear(6, 6), nn.LayerNorm(6), nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        for _ in range(2):
            x = self.norm(torch.tanh(self.linear(x)))
            x = self.conv(x[:, None])[:, 0]
        return x


class TiedModules(nn.Module):
    """An embedding whose weight is also the decoder's."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


class Positions(nn.Module):
    """A position embedding that is computed once for all examples, as Hugging Face's models do."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(11, 6, padding_idx=0), nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out((self.words(x) + self.places(torch.arange(x.shape[1])[None])).mean(1))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Bilinear(4, 2, 3)

    def forward(self, x, y):
        return self.left(x) * self.right(x, y)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    return model


def tokens(*shape: int, most: int = 7) -> torch.Tensor:
    return torch.randint(0, most, shape)


CASES = {
    "linear": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (torch.randn(6, 5),)),
    "linear without bias": lambda: (nn.Linear(5, 3, bias=False), (torch.randn(6, 5),)),
    "bias alone": lambda: (frozen(nn.Linear(5, 3), "weight"), (torch.randn(6, 5),)),
    "linear on sequences": lambda: (nn.Linear(5, 3), (torch.randn(6, 4, 5),)),
    "linear on long sequences": lambda: (nn.Linear(2, 2), (torch.randn(3, 50, 2),)),
    "linear on grids": lambda: (nn.Linear(5, 3), (torch.randn(6, 2, 4, 5),)),
    "conv1d": lambda: (nn.Conv1d(3, 4, 3, stride=2, padding=1), (torch.randn(5, 3, 11),)),
    "conv2d": lambda: (nn.Conv2d(3, 4, 3), (torch.randn(5, 3, 8, 9),)),
    "conv2d stride padding": lambda: (nn.Conv2d(2, 4, (3, 5), stride=(2, 1), padding=(1, 2)), (torch.randn(5, 2, 8, 9),)),
    "conv2d dilation": lambda: (nn.Conv2d(2, 4, 3, dilation=2, padding=2, stride=2), (torch.randn(5, 2, 8, 9),)),
    "conv2d groups": lambda: (nn.Conv2d(4, 6, 3, groups=2, padding=1), (torch.randn(5, 4, 6, 6),)),
    "conv2d depthwise": lambda: (nn.Conv2d(4, 8, 3, groups=4), (torch.randn(5, 4, 6, 6),)),
    "conv2d same": lambda: (nn.Conv2d(2, 3, (3, 5), dilation=2, padding="same"), (torch.randn(5, 2, 7, 7),)),
    "conv2d valid": lambda: (nn.Conv2d(2, 3, 4, padding="valid"), (torch.randn(5, 2, 7, 7),)),
    "conv2d reflect": lambda: (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (torch.randn(5, 2, 7, 7),)),
    "conv2d circular": lambda: (nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="circular"), (torch.randn(5, 2, 7, 7),)),
    "conv2d few positions": lambda: (nn.Conv2d(16, 32, 3), (torch.randn(5, 16, 4, 4),)),
    "conv2d leftover columns": lambda: (nn.Conv2d(2, 3, 4, stride=3), (torch.randn(5, 2, 12, 12),)),
    "conv3d": lambda: (nn.Conv3d(2, 3, 2, stride=2, padding=1), (torch.randn(4, 2, 5, 6, 4),)),
    "conv3d groups": lambda: (nn.Conv3d(2, 4, 2, groups=2), (torch.randn(4, 2, 3, 4, 3),)),
    "conv transposed": lambda: (nn.ConvTranspose2d(2, 3, 3), (torch.randn(4, 2, 5, 5),)),
    "channels last": lambda: (nn.Conv2d(3, 4, 3, padding=1), (torch.randn(5, 3, 6, 6).to(memory_format=torch.channels_last),)),
    "inplace activation": lambda: (
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
        (torch.randn(5, 1, 6, 6),),
    ),
    "embedding": lambda: (nn.Embedding(7, 3), (tokens(6, 9),)),
    "embedding with padding": lambda: (nn.Embedding(7, 3, padding_idx=2), (tokens(6, 9),)),
    "embedding of one token": lambda: (nn.Embedding(7, 3), (tokens(6),)),
    "embedding bag": lambda: (nn.EmbeddingBag(7, 3, mode="mean"), (tokens(6, 4),)),
    "layer norm": lambda: (nn.LayerNorm(5), (torch.randn(6, 4, 5),)),
    "layer norm over two": lambda: (nn.LayerNorm([4, 5]), (torch.randn(6, 2, 4, 5),)),
    "layer norm without bias": lambda: (nn.LayerNorm(5, bias=False), (torch.randn(6, 5),)),
    "rms norm": lambda: (nn.RMSNorm(5), (torch.randn(6, 4, 5),)),
    "group norm": lambda: (nn.GroupNorm(2, 6), (torch.randn(5, 6, 4, 4),)),
    "instance norm": lambda: (nn.InstanceNorm2d(3, affine=True), (torch.randn(5, 3, 4, 4),)),
    "instance norm 1d": lambda: (nn.InstanceNorm1d(3, affine=True), (torch.randn(5, 3, 9),)),
    "instance norm 3d": lambda: (nn.InstanceNorm3d(3, affine=True), (torch.randn(5, 3, 2, 3, 2),)),
    "prelu": lambda: (nn.Sequential(nn.Linear(4, 4), nn.PReLU()), (torch.randn(5, 4),)),
    "scalars": lambda: (nn.Sequential(nn.Linear(4, 4), Scalar()), (torch.randn(5, 4),)),
    "lora": lambda: (Lora(5, 3), (torch.randn(6, 5),)),
    "lora frozen base": lambda: (frozen(Lora(5, 3), "weight", "bias"), (torch.randn(6, 5),)),
    "weight norm": lambda: (parametrizations.weight_norm(nn.Linear(5, 3)), (torch.randn(6, 5),)),
    "called twice": lambda: (Twice(), (torch.randn(5, 6),)),
    "tied modules": lambda: (TiedModules(), (tokens(5, 4),)),
    "positions for all": lambda: (Positions(), (tokens(4, 5, most=11),)),
    "two inputs": lambda: (TwoInputs(), (torch.randn(5, 4), torch.randn(5, 2))),
    "lstm": lambda: (Take(LSTM(3, 4, num_layers=2, batch_first=True)), (torch.randn(5, 6, 3),)),
    "lstm both ways": lambda: (Take(LSTM(3, 4, num_layers=2, batch_first=True, bidirectional=True)), (torch.randn(5, 5, 3),)),
    "gru": lambda: (Take(GRU(3, 4, batch_first=True, bidirectional=True)), (torch.randn(5, 6, 3),)),
    "rnn": lambda: (Take(RNN(3, 4, batch_first=True)), (torch.randn(5, 6, 3),)),
    "lstm of opacus": lambda: (Take(DPLSTM(3, 4, num_layers=2, batch_first=True)), (torch.randn(5, 6, 3),)),
    "gru of opacus": lambda: (Take(DPGRU(3, 4, batch_first=True, bidirectional=True)), (torch.randn(5, 6, 3),)),
    "rnn of opacus": lambda: (Take(DPRNN(3, 4, batch_first=True)), (torch.randn(5, 6, 3),)),
    "attention": lambda: (Attention(True), (torch.randn(5, 6, 8),)),
    "attention as long as the batch": lambda: (Attention(True), (torch.randn(5, 5, 8),)),
    "attention positions first": lambda: (Attention(False), (torch.randn(5, 6, 8),)),
    "attention of torch": lambda: (Attention(True, nn.MultiheadAttention), (torch.randn(5, 6, 8),)),
    "frozen first layer": lambda: (
        frozen(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), "0.weight", "0.bias"),
        (torch.randn(6, 5),),
    ),
}
