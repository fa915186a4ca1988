"""The release of the data-dependent spend is paid by everyone, so it may cost no more than the strictest can pay."""

import numpy as np
import pytest

import sartor
from sartor import pate
from sartor.run.stream import Stream

TEACHERS, QUERIES = 60, 40
SEEDS = range(2)
ORDER = 10.0  # the same for all, so that figures differ by the noise alone


def kept(place, plan, people, votes):
    """These votes where they can be aggregated and their spend released."""
    folder = pate.EnsembleFolder.create(place, plan, people)
    folder.put(votes, 4)
    return folder


def released(folder, groups, delta):
    """What is published of the same votes, under several seeds, where these groups share the reserve."""
    folder.mkdir()
    people = sartor.Budgets.from_groups(groups, delta=delta, reserve=0.5)
    plan = pate.plan(people, "standard", teachers=TEACHERS, aggregator=pate.GNMax(12))
    rng = np.random.default_rng(1)
    votes = np.where(rng.random((QUERIES, TEACHERS)) < 0.95, rng.integers(0, 4, (QUERIES, 1)), rng.integers(0, 4, (QUERIES, TEACHERS)))
    found = []
    for seed in SEEDS:
        saved = kept(folder / str(seed), plan, people, votes)
        assert saved.aggregate(stream=Stream(seed=100)).asked.all()
        found.append(saved.publish_spent(order=ORDER, stream=Stream(seed=seed)).divergence)
    return np.array(found)


@pytest.mark.parametrize(
    ("strict", "loose"),
    [((8.0, 1e-3), (32.0, 1e-3)), ((32.0, 1e-8), (32.0, 1e-2))],
    ids=["by epsilon", "by delta"],
)
def test_a_release_is_paid_by_the_strictest_and_not_by_the_most_open(tmp_path, strict, loose):
    """So it is the one that the strictest alone would get, whoever else is there and however they are listed."""

    def of(name, *kinds):
        share = 600 // len(kinds)
        return released(tmp_path / name, [(epsilon, share) for epsilon, _ in kinds], [delta for _, delta in kinds])

    alone, open_alone = of("strict", strict), of("loose", loose)
    assert not np.any(np.isclose(alone, open_alone, rtol=1e-3))  # or there would be nothing to tell apart
    np.testing.assert_allclose(of("both", strict, loose), alone, rtol=1e-9)
    np.testing.assert_allclose(of("turned", loose, strict), alone, rtol=1e-9)
