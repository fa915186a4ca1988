"""Data sets that make a record of other people's too are refused, wherever they keep them; those that make it of its own row are not."""

import warnings
from collections import deque

import numpy as np
import pytest
import torch
from sartor.sgd.reach import Reach
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

import sartor
from sartor.sgd.check import Unchecked
from sartor.sgd.stores import stores

SIZE, WIDTH = 120, 4
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(SIZE, WIDTH), torch.randint(0, 2, (SIZE,))
ORDER = torch.randperm(SIZE)


def train(data, way, collate=None, steps=4):
    budgets = sartor.Budgets.from_groups([(4.0, len(data))], delta=1e-3)
    plan = sartor.plan(budgets, "uniform", steps=steps, batch=20, clip=1.0)
    model = nn.Linear(WIDTH, 2)
    if way == "fit":
        return sartor.fit(model, data, budgets, plan, progress=False, seed=3, collate=collate).steps
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, seed=3, collate=collate)
    for inputs, targets in loader:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return optimizer.account().steps


class Holds(Dataset):
    def __init__(self, **held):
        vars(self).update(held)

    def __len__(self):
        return SIZE


class Rows(Holds):
    def __init__(self):
        super().__init__(x=INPUTS.clone(), y=TARGETS.clone())

    def __getitem__(self, i):
        return self.x[i], self.y[i]


# those that reach


class Mixup(Rows):
    def __getitem__(self, i):
        return 0.5 * self.x[i] + 0.5 * self.x[torch.randint(SIZE, ())], self.y[i]


class NowAndThen(Rows):
    def __getitem__(self, i):
        return (self.x[i] + self.x[i - 1] if torch.rand(()) < 0.3 else self.x[i]), self.y[i]


class Neighbour(Holds):
    """The neighbour was found beforehand."""

    def __init__(self):
        super().__init__(x=INPUTS.numpy().copy(), near=torch.cdist(INPUTS, INPUTS).topk(2, largest=False).indices[:, 1].tolist())

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i] + self.x[self.near[i]]), TARGETS[i]


class Nearest(Rows):
    """The nearest of the other class, whoever that is."""

    def __getitem__(self, i):
        others = self.x[self.y != self.y[i]]
        return self.x[i] - others[(others - self.x[i]).norm(dim=1).argmin()], self.y[i]


class Standardised(Rows):
    def __getitem__(self, i):
        return self.x[i] - self.x.mean(0), self.y[i]


class InALargeList(Holds):
    def __init__(self):
        super().__init__(records=[(x, y) for x, y in zip(INPUTS, TARGETS, strict=True)])

    def __getitem__(self, i):
        x, y = self.records[i]
        return x + self.records[(i + 7) % SIZE][0], y


class ByName(Holds):
    def __init__(self):
        super().__init__(records={f"person {i}": (x, int(y)) for i, (x, y) in enumerate(zip(INPUTS, TARGETS, strict=True))})

    def __getitem__(self, i):
        x, y = self.records[f"person {i}"]
        return x + self.records[f"person {i // 2}"][0], y


class Around(Holds):
    """A data set around another, whose records it mixes."""

    def __init__(self, inner):
        super().__init__(inner=inner)

    def __getitem__(self, i):
        (x, y), (other, _) = self.inner[i], self.inner[(i + 1) % SIZE]
        return x + other, y


class Table:
    """Rows behind a class of one's own."""

    def __init__(self):
        self.rows = list(zip(INPUTS, TARGETS, strict=True))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class OfATable(Holds):
    def __init__(self):
        super().__init__(table=Table())

    def __getitem__(self, i):
        return self.table[i][0] - self.table[i - 1][0], self.table[i][1]


class LabelOfTheNext(Rows):
    def __getitem__(self, i):
        return self.x[i], self.y[(i + 1) % SIZE]


class Partner:
    """A collate function that has the data set at hand."""

    def __init__(self, data):
        self.data = data

    def __call__(self, items):
        inputs, targets = default_collate(items)
        return inputs + self.data[0][0], targets


class OfItsOwn:
    """A collate function that has a copy of all records, and is a method as well."""

    def __init__(self):
        self.rows = INPUTS.clone()

    def __call__(self, items):
        inputs, targets = default_collate(items)
        return inputs + self.rows[0], targets

    def join(self, items):
        return self(items)


REACHING = {
    **{kind.__name__: kind for kind in (Mixup, NowAndThen, Neighbour, Nearest, Standardised, InALargeList, ByName)},
    **{kind.__name__: kind for kind in (LabelOfTheNext, OfATable)},
    "around tensors": lambda: Around(TensorDataset(INPUTS.clone(), TARGETS.clone())),
    "a part of one": lambda: Subset(Mixup(), ORDER.tolist()),
    "two parts": lambda: ConcatDataset([Subset(Mixup(), range(60)), Subset(Mixup(), range(60))]),
}


@pytest.mark.parametrize("way", ["fit", "loop"])
@pytest.mark.parametrize("data", REACHING)
def test_a_data_set_that_makes_a_record_of_others_is_refused(data, way):
    with pytest.raises(sartor.SartorError, match="other people's records in the data set are replaced"):
        train(REACHING[data](), way)


@pytest.mark.parametrize("seed", range(12))
def test_whoever_alone_decides_a_statistic_of_all_is_missing_in_one_of_two_draws(seed):
    data = Rows()
    data.x[7] = 100.0

    def scaled(instead, record, seed):
        x = instead.get(id(data.x), data.x)
        return x[record : record + 1] / x.max()

    with pytest.raises(sartor.SartorError, match="other people's records in the data set are replaced"):
        Reach(stores(data, None), scaled, np.random.default_rng(seed)).refuse([3], [0])


def test_a_collate_function_that_reads_other_records_is_refused():
    data = Rows()
    with pytest.raises(sartor.SartorError, match="other people's records in the data set are replaced"):
        train(data, "loop", Partner(data))


@pytest.mark.parametrize("collate", [lambda: OfItsOwn(), lambda: OfItsOwn().join], ids=["an object", "a method"])
def test_a_collate_function_that_has_records_of_its_own_is_refused(collate):
    with pytest.raises(sartor.SartorError, match="other people's records in the data set are replaced"):
        train(Rows(), "loop", collate())


# those that do not


class InAnOrder(Rows):
    def __init__(self):
        super().__init__()
        self.order = ORDER.numpy()

    def __getitem__(self, i):
        return super().__getitem__(self.order[i])


class Backwards(Rows):
    def __getitem__(self, i):
        return super().__getitem__(SIZE - 1 - i)


class Ragged(Holds):
    """Records of several lengths in one array, each from where the one before ends."""

    def __init__(self):
        lengths = torch.randint(1, WIDTH + 1, (SIZE,))
        super().__init__(ends=lengths.cumsum(0), values=torch.randn(int(lengths.sum())))

    def __getitem__(self, i):
        own = self.values[int(self.ends[i - 1]) if i else 0 : int(self.ends[i])]
        return nn.functional.pad(own, (0, WIDTH - len(own))), TARGETS[i]


class Files(Holds):
    """Paths and classes, as folders of images are read; what is beside is checked when it is opened."""

    def __init__(self, folder):
        self.samples = [(str(folder / f"{i}.npy"), int(TARGETS[i])) for i in range(SIZE)]
        self.digests = [hash(path) for path, _ in self.samples]
        for (path, _), x in zip(self.samples, INPUTS, strict=True):
            np.save(path, x.numpy())

    def __getitem__(self, i):
        path, y = self.samples[i]
        assert hash(path) == self.digests[i]
        return torch.from_numpy(np.load(path)), y


class Words(Holds):
    """A vocabulary and a table of vectors, both public, of other lengths than the data."""

    def __init__(self):
        super().__init__(texts=[[f"w{int(w)}" for w in torch.randint(0, 50, (5,))] for _ in range(SIZE)])
        self.vocabulary, self.vectors = {f"w{i}": i for i in range(50)}, torch.randn(50, WIDTH)

    def __getitem__(self, i):
        return torch.stack([self.vectors[self.vocabulary[word]] for word in self.texts[i]]).mean(0), TARGETS[i]


class Augmented(Rows):
    def __getitem__(self, i):
        return self.x[i] * (torch.rand(WIDTH) > 0.2), self.y[i]


HONEST = {
    **{kind.__name__: lambda folder, kind=kind: kind() for kind in (Rows, InAnOrder, Backwards, Ragged, Words, Augmented)},
    "files": Files,
    "a list": lambda folder: list(zip(INPUTS, TARGETS, strict=True)),
    "a part": lambda folder: Subset(TensorDataset(INPUTS, TARGETS), ORDER[:100].tolist()),
    "a part of a part": lambda folder: Subset(Subset(Rows(), ORDER.tolist()), ORDER[:90].numpy()),
    "parts": lambda folder: ConcatDataset([Rows(), Subset(Rows(), ORDER[:40].tolist()), TensorDataset(INPUTS[:30], TARGETS[:30])]),
}
SLOW = ("Backwards", "InAnOrder")  # whose rows are looked for, one by one


@pytest.mark.parametrize("way", ["fit", "loop"])
@pytest.mark.parametrize("data", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in HONEST])
def test_a_data_set_that_makes_each_record_of_its_own_row_trains(data, way, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unchecked)
        assert train(HONEST[data](tmp_path), way) == 4


# what cannot be seen is said


class Mapped(Holds):
    """Records in a file that is mapped into memory."""

    def __init__(self, folder):
        np.save(folder / "x.npy", INPUTS.numpy())
        super().__init__(x=np.load(folder / "x.npy", mmap_mode="r"))

    def __getitem__(self, i):
        return torch.from_numpy(np.array(self.x[i])), TARGETS[i]


class InADeque(Holds):
    def __init__(self):
        super().__init__(records=deque(zip(INPUTS, TARGETS, strict=True)))

    def __getitem__(self, i):
        return self.records[i]


class FailsOnOthers(Rows):
    def __init__(self):
        super().__init__()
        self.sum = self.x.sum()

    def __getitem__(self, i):
        if not torch.equal(self.x.sum(), self.sum):
            raise ValueError("somebody else's rows")
        return super().__getitem__(i)


@pytest.mark.parametrize("data", [Mapped, lambda folder: InADeque(), lambda folder: FailsOnOthers()], ids=["mapped", "deque", "fails"])
def test_records_that_cannot_be_replaced_are_told(data, tmp_path):
    with pytest.warns(Unchecked, match="made of other people's too cannot be seen"):
        assert train(data(tmp_path), "fit") == 4
