"""Faults put into a round on purpose: each must be caught by a straightforward computation of what the round should release.

Faults in what rounds with silent clients cost are caught by a check that `test_strategy` runs too, which needs Flower.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import sartor
from sartor import federated
from sartor.federated import ledger as keeping
from sartor.federated import rounds as running
from sartor.federated import updates as clipping
from sartor.federated.plan import FederatedPlan
from sartor.federated.rounds import Round
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

SHAPES = ((2, 3), (), (5,))
BUDGETS = sartor.Budgets(np.repeat([1.0, 2.0, 4.0], 40), delta=1e-3)
SAME = 1e-9


def named(parts):
    """Arrays under names of their own, as a model has them."""
    return {f"array {place}": part for place, part in enumerate(parts)}


def planned(scheme, adaptive=True):
    return federated.plan(
        BUDGETS, scheme, rounds=6, per_round=40, clip=0.8, accountant="rdp", adaptive=federated.AdaptiveClip(0.6, 0.3) if adaptive else None
    )


def answer_of(client):
    """Some update: long or short, by the client's number; a third of the clients fail in one way or another."""
    rng = np.random.default_rng(client)
    found = [rng.normal(0, 0.02 + (client % 5) ** 2 / 10, shape) for shape in SHAPES]
    if client % 9 == 0:
        return None
    if client % 9 == 1:
        found[0] = found[0] * np.nan
    return found


def by_hand(plan, step, seed):
    """The mean and the next clip of a round, from the definitions, one client and one number at a time."""
    draw = PoissonSampler(plan.accounted, BUDGETS, Stream(seed)).draw(step)
    z, clip = plan.accounted.noise_multiplier, plan.accounted.clip
    applied = 1 / np.sqrt(1 / z**2 - 1 / (2 * plan.per_round / 20) ** 2) if plan.adaptive else z
    noise = Stream(seed).generator("federated", step).standard_normal(12) * applied * clip
    total, count = noise.copy(), 0.0
    for client in draw.indices.tolist():
        group = int(np.flatnonzero(plan.accounted.epsilon == BUDGETS.epsilon[client])[0])
        answer = answer_of(client)
        if answer is None or not all(np.isfinite(part).all() for part in answer):
            continue
        flat = np.concatenate([np.ravel(part) for part in answer])
        length, own = np.linalg.norm(flat), plan.accounted.clips[group]
        total += flat * min(1.0, own / length)
        count += own / clip * (0.5 if length <= clip else -0.5)
    if not plan.adaptive:
        return total / plan.per_round, clip
    count += Stream(seed).generator("federated count", step).standard_normal() * plan.per_round / 20
    expected = np.sum(plan.accounted.rate * plan.accounted.clips / clip * plan.accounted.holders)
    return total / plan.per_round, clip * np.exp(-0.3 * (count / expected + 0.5 - 0.6))


def difference_from_by_hand(scheme, adaptive=True):
    """How far what a round releases is from that, over some rounds."""
    plan, seed, worst = planned(scheme, adaptive), 3, 0.0
    for step in range(4):
        draw = PoissonSampler(plan.accounted, BUDGETS, Stream(seed)).draw(step)
        current = Round(plan, draw, named(np.zeros(shape) for shape in SHAPES), plan.accounted.clip)
        for client in current.drawn:
            if answer_of(client) is not None:
                current.add(client, named(answer_of(client)))
        released = current.release(Stream(seed))
        mean, clip = by_hand(plan, step, seed)
        found = np.concatenate([np.ravel(part) for part in released.mean.values()])
        worst = max(worst, float(np.abs(found - mean).max()), abs(released.clip - clip))
    return worst


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("scheme", ["sample", "scale", "hybrid", "uniform"])
def test_a_round_releases_what_the_definitions_say(scheme, adaptive):
    assert difference_from_by_hand(scheme, adaptive) < 1e-7


def test_dividing_by_those_who_answered_is_caught(monkeypatch):
    right = Round.release

    def observed(self, stream):
        released = right(self, stream)
        scale = self._plan.per_round / max(1, len(self._answered))
        return running.Released({name: part * scale for name, part in released.mean.items()}, released.clip)

    monkeypatch.setattr(Round, "release", observed)
    assert difference_from_by_hand("sample") > 1e-3


def test_weighting_by_examples_is_caught(monkeypatch):
    right = running.clipped

    def weighted(update, clip):
        short, length = right(update, clip)
        return [part * (1 + len(short)) / 2 for part in short], length

    monkeypatch.setattr(running, "clipped", weighted)
    assert difference_from_by_hand("sample") > 1e-3


def test_noise_before_clipping_is_caught(monkeypatch):
    rng = np.random.default_rng(0)
    right = running.clipped
    monkeypatch.setattr(running, "clipped", lambda update, clip: right([part + rng.normal(0, clip, part.shape) for part in update], clip))
    monkeypatch.setattr(running, "normal", lambda generator, size, deviation: np.zeros(size))
    assert difference_from_by_hand("sample") > 1e-3


def test_a_parameter_of_no_dimension_left_unclipped_is_caught(monkeypatch):
    right = running.clipped

    def skipped(update, clip):
        short, length = right([part for part in update if part.ndim], clip)
        return [short.pop(0) if part.ndim else part for part in update], length

    monkeypatch.setattr(running, "clipped", skipped)
    assert difference_from_by_hand("sample") > 1e-3


def test_a_parameter_of_no_dimension_left_without_noise_is_caught(monkeypatch):
    right = Round.release

    def bare(self, stream):
        sums = dict(zip(self._model, [np.array(total) for total in self._sums], strict=True))
        released = right(self, stream)
        mean = {name: part if np.ndim(part) else sums[name] / self._plan.per_round for name, part in released.mean.items()}
        return running.Released(mean, released.clip)

    monkeypatch.setattr(Round, "release", bare)
    assert difference_from_by_hand("sample") > 1e-3


@pytest.fixture
def strategy():
    """The check of what drop-outs cost, where Flower is installed."""
    from sartor_testing import grids

    return grids


def after_rounds(monkeypatch, strategy, then):
    """Do something after every round, given its ledger, how many nodes were there, which were asked, and their replies."""
    kind = strategy.PrivateFedAvg
    configure, aggregate, seen = kind.configure_train, kind.aggregate_train, {}

    def configured(self, number, arrays, config, grid):
        messages = list(configure(self, number, arrays, config, grid))
        seen.update(there=len(grid.get_node_ids()), asked=[message.metadata.dst_node_id for message in messages])
        return messages

    def aggregated(self, number, replies):
        replies = list(replies)
        result = aggregate(self, number, replies)
        then(self.ledger, seen["there"], seen["asked"], replies)
        return result

    monkeypatch.setattr(kind, "configure_train", configured)
    monkeypatch.setattr(kind, "aggregate_train", aggregated)


def refund(ledger):
    ledger._write(replace(ledger._rounds, charged=ledger.charged - 1))
    ledger.save(ledger.saved())  # else it would prove the round


REFUNDS = {
    "some are silent": lambda there, asked, replies: len(replies) < len(asked),
    "all are silent": lambda there, asked, replies: not replies,
    "some fail": lambda there, asked, replies: any(not reply.has_content() for reply in replies),
    "some are not there": lambda there, asked, replies: there < 16,
}


@pytest.mark.parametrize("when", REFUNDS)
def test_rounds_in_which_clients_dropped_out_not_charged_is_caught(tmp_path, monkeypatch, strategy, when):
    after_rounds(monkeypatch, strategy, lambda ledger, *happened: REFUNDS[when](*happened) and refund(ledger))
    assert not strategy.drop_outs_are_charged(tmp_path)


def test_silent_clients_charged_less_than_others_is_caught(tmp_path, monkeypatch, strategy):
    spared, right = set(), keeping.Ledger.client_accounts

    def note(ledger, there, asked, replies):
        spared.update(f"key {number - 100}" for number in set(asked) - {reply.metadata.src_node_id for reply in replies})

    def accounts(self, keys):
        return {key: replace(own, spent=0.9 * own.spent) if key in spared else own for key, own in right(self, keys).items()}

    after_rounds(monkeypatch, strategy, note)
    assert strategy.drop_outs_are_charged(tmp_path / "right")
    spared.clear()
    monkeypatch.setattr(keeping.Ledger, "client_accounts", accounts)
    assert not strategy.drop_outs_are_charged(tmp_path / "wrong")


def test_rounds_that_are_not_charged_on_the_disk_are_caught(tmp_path, monkeypatch, strategy):
    def unwritten(ledger, there, asked, replies):
        path = ledger.folder / "rounds.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "charged": ledger.charged - (not replies)}))

    after_rounds(monkeypatch, strategy, unwritten)
    with pytest.raises(sartor.SartorError, match="proves a later round"):
        strategy.drop_outs_are_charged(tmp_path)


def test_a_count_without_noise_is_caught(monkeypatch):
    right = running.normal
    monkeypatch.setattr(running, "normal", lambda generator, size, deviation: right(generator, size, deviation) * (size != 1))
    assert difference_from_by_hand("sample") > 1e-4
    assert difference_from_by_hand("sample", adaptive=False) < 1e-7  # and it is the count that was wrong


def test_bits_that_do_not_follow_the_clip_are_caught(monkeypatch):
    right = Round.add

    def unscaled(self, client, answer):
        share, before = self._waiting.get(client, 1.0), self._bits
        used = right(self, client, answer)
        self._bits = before + (self._bits - before) / share
        return used

    monkeypatch.setattr(Round, "add", unscaled)
    assert difference_from_by_hand("sample") < 1e-7  # there all shares are 1
    assert difference_from_by_hand("scale") > 1e-4


def test_accounted_noise_applied_to_updates_is_caught(monkeypatch):
    monkeypatch.setattr(FederatedPlan, "update_noise_multiplier", property(lambda self: self.accounted.noise_multiplier))
    with pytest.raises(sartor.Infeasible):
        planned("sample")


def test_a_clip_ten_times_too_long_is_caught(monkeypatch):
    right = clipping.clipped
    monkeypatch.setattr(running, "clipped", lambda update, clip: right(update, 10 * clip))
    assert difference_from_by_hand("sample") > 1e-3


def test_groups_that_got_each_others_rates_are_caught(monkeypatch):
    plan = planned("sample", adaptive=False)
    right = sartor.Plan.groups_of
    honest = PoissonSampler(plan.accounted, BUDGETS, Stream(1))
    monkeypatch.setattr(sartor.Plan, "groups_of", lambda self, budgets: 2 - right(self, budgets))
    swapped = PoissonSampler(plan.accounted, BUDGETS, Stream(1))

    def share_of_strict(sampler):
        return np.mean([np.sum(sampler.draw(step).indices < 40) for step in range(6)])

    expected = 40 * plan.accounted.rate[0]
    assert abs(share_of_strict(honest) - expected) < 4
    assert abs(share_of_strict(swapped) - expected) > 8
