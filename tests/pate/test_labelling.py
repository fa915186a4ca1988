"""The data sets as PATE needs them, and what is usual for each."""

import numpy as np
import pytest
import torch

from sartor import Budgets, pate
from sartor.errors import SartorError
from sartor.pate.labelling import labelling, typical_first, usual_teachers
from sartor.pate.teachers import EstimatorTeachers, NetworkTeachers
from sartor.pate.usual import usual


def left(queries, order):
    """How far all queries are from the nearest of some, in sum."""
    points = queries.flatten(1).double()
    return float((torch.cdist(points, points[torch.as_tensor(order)]) ** 2).min(1).values.sum())


def test_typical_queries_come_first_whatever_their_order():
    queries = labelling("digits").queries
    shuffled = queries[torch.from_numpy(np.random.default_rng(1).permutation(len(queries)))]
    order = typical_first(shuffled)
    assert sorted(order) == list(range(len(queries)))
    assert torch.equal(shuffled[torch.from_numpy(order[:40])], queries[:40])  # as the data set has them already; later ones are often even
    for count in (1, 10, 40):
        others = [left(shuffled, np.random.default_rng(seed).permutation(len(queries))[:count]) for seed in range(50)]
        assert left(shuffled, order[:count]) < min(others)


def test_no_row_is_private_and_public_at_once():
    work = labelling("digits")
    rows = torch.cat([work.private.tensors[0], work.queries, work.test.tensors[0]]).flatten(1)
    assert len(rows) == len(torch.unique(rows, dim=0)) == 1_797


def test_the_papers_parameters_are_usual_for_its_data_sets():
    for name, threshold, noise in (("mnist", 200, 150), ("adult", 300, 200)):
        known = usual(name)
        assert (known.teachers, known.tested) == (250, 1_000)
        assert known.aggregator == pate.Confident(40, threshold, noise)
    assert (usual("mnist").queries, usual("mnist").epochs, usual("adult").queries) == (9_000, 20, 7_000)
    with pytest.raises(SartorError, match="knows the data sets digits, mnist, adult"):
        usual("cifar10")


def test_teachers_are_the_usual_ones_or_of_another_kind():
    work = labelling("digits")
    assert type(usual_teachers(work)) is type(usual_teachers(work, model="forest")) is EstimatorTeachers
    assert usual_teachers(work, model="network").how.epochs == usual("digits").epochs
    assert usual_teachers(work, model="network", epochs=3).how.epochs == 3
    assert isinstance(usual_teachers(work, model="network"), NetworkTeachers)
    with pytest.raises(SartorError, match="epochs are for networks"):
        usual_teachers(work, epochs=3)
    with pytest.raises(SartorError, match="network, forest, neighbour"):
        usual_teachers(work, model="tree")


def test_the_bundled_digits_pay_for_a_label_of_each_class_under_the_papers_budgets():
    people = Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=1_437, delta=1e-5, seed=1)
    count = usual("digits").teachers
    plan = pate.plan(people, "weight", teachers=count, aggregator=pate.aggregator_for(count, 10))
    assert pate.forecast(plan, 260).queries >= 2 * 10
    assert set(labelling("digits").truth[:20].tolist()) == set(range(10))
