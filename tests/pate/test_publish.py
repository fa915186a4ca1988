"""Releasing the data-dependent spend: where it is proven, once, out of the reserve."""

import numpy as np
import pytest

import sartor
from sartor import pate
from sartor.pate import bounds
from sartor.run.stream import Stream

TEACHERS, QUERIES = 60, 40


def saved(path, *, reserve=0.5, variant="standard", aggregator=None, agreement=1.0):
    people = sartor.Budgets.from_groups([(8.0, 300), (16.0, 300)], delta=1e-3, reserve=reserve)
    plan = pate.plan(people, variant, teachers=TEACHERS, aggregator=aggregator or pate.GNMax(12))
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 4, QUERIES)
    shape = (QUERIES, plan.teachers)
    votes = np.where(rng.random(shape) < agreement, truth[:, None], rng.integers(0, 4, shape))
    folder = pate.EnsembleFolder.create(path / "kept", plan, people)
    folder.put(votes, 4)
    return folder


def test_the_figure_bounds_the_truth_and_beats_the_noise_alone_where_teachers_agree(tmp_path):
    votes = saved(tmp_path)
    found = votes.aggregate(stream=Stream(1))
    asked = int(found.asked.sum())
    assert asked == QUERIES
    released = [saved_again(tmp_path, i).publish_spent(stream=Stream(i), failure=0.05) for i in range(12)]
    counts = np.stack([(votes._votes()[0] == label).sum(1) for label in range(4)], 1)
    log_q = bounds.log_q_of_answers(counts, 12)
    for figure in released:
        truth = float(bounds.answer([figure.order], 12, 1.0, log_q).sum())
        assert truth <= figure.divergence <= asked * figure.order / 12**2 * (1 + 1e-12)
        assert figure.spent <= found.account.spent.max() * (1 + 1e-9)


def saved_again(tmp_path, number):
    folder = tmp_path / str(number)
    folder.mkdir()
    votes = saved(folder)
    votes.aggregate(stream=Stream(1))
    return votes


def test_it_is_released_once_and_the_folder_remembers(tmp_path):
    votes = saved(tmp_path)
    votes.aggregate(stream=Stream(1))
    found = votes.publish_spent(stream=Stream(2))
    again = pate.EnsembleFolder(votes.path)
    assert again.publish_spent(stream=Stream(3)) == found  # the same request, and no second release
    for other in ({"failure": 0.05, "stream": Stream(3)}, {"stream": None}, {"order": 3.0, "stream": Stream(3)}):
        with pytest.raises(sartor.Infeasible, match="reserve was spent"):
            again.publish_spent(**other)
    assert len(pate.EnsembleFolder(votes.path)._charges.made) == 2


def test_it_is_released_once_whatever_is_aggregated_afterwards(tmp_path):
    votes = saved(tmp_path)
    votes.aggregate(labels=5, stream=Stream(1))
    votes.publish_spent(stream=Stream(2))
    assert len(votes.aggregate(labels=5, further=True, stream=Stream(3))) == 5
    with pytest.raises(sartor.Infeasible, match="reserve was spent"):
        votes.publish_spent(stream=Stream(4))


def test_it_is_refused_where_it_is_not_proven_or_not_paid(tmp_path):
    for number, (settings, why) in enumerate(
        [
            ({"variant": "weight"}, "standard variant"),
            ({"variant": "upsample"}, "standard variant"),
            ({"aggregator": pate.Confident(12, 30, 20)}, "plain GNMax"),
            ({"reserve": 0.0}, "reserve"),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        votes = saved(tmp_path / str(number), **settings)
        votes.aggregate(stream=Stream(1))
        with pytest.raises(sartor.SartorError, match=why):
            votes.publish_spent()
    with pytest.raises(sartor.SartorError, match="nothing was spent"):
        saved(tmp_path).publish_spent()


@pytest.mark.filterwarnings("ignore::sartor.pate.DataDependent")
def test_it_is_refused_after_a_voting_that_stopped_by_the_votes(tmp_path):
    votes = saved(tmp_path)
    votes.aggregate(bound="dependent", stream=Stream(1))
    with pytest.raises(sartor.SartorError, match="stopped by the votes"):
        votes.publish_spent()


def test_labels_and_release_together_stay_within_the_whole_budget(tmp_path):
    votes = saved(tmp_path)
    found = votes.aggregate(stream=Stream(1))
    plan = votes.plan
    epsilon, delta = plan.spendable
    np.testing.assert_allclose(epsilon + plan.reserve * plan.epsilon, plan.epsilon)
    np.testing.assert_allclose(delta + plan.reserve * plan.delta, plan.delta)
    assert np.all(found.account.spent <= epsilon)
