"""Breaks of federated rounds: clips, noise, divisors, counts, and what drop-outs cost."""

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from mutants import attacks
from mutants.machinery import Catcher, catcher, mutant
from sartor.audit.replay import replay
from sartor.errors import Infeasible, SartorError
from sartor.federated import ledger as keeping
from sartor.federated import rounds as running
from sartor.federated import updates as clipping
from sartor.federated.plan import FederatedPlan
from sartor.federated.rounds import Round
from sartor.plans import Plan
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import seen
from sartor_testing import hand_rounds as by_hand

SHAPES = {"weight": (8, 20), "scale": (), "bias": (20,)}


@functools.cache
def updates():
    """What each client would change: long and short updates, of every array."""
    generator = torch.Generator().manual_seed(2)
    length = torch.tensor([0.01, 3.0, 0.3])[torch.arange(120) % 3]
    return TensorDataset(torch.randn(120, 181, generator=generator) * length[:, None], torch.arange(120))


def rounds_of(plan, data, seed, again=False):
    """All rounds of a plan, whose clients send what the data set says of them; the model and clip at the end."""
    stream, clip = Stream(seed), plan.accounted.clip
    sampler = PoissonSampler(plan.accounted, by_hand.BUDGETS, stream)
    model = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES.values()])[:-1]
    for number in range(plan.rounds):
        one = Round(plan, seen(stream, sampler.draw(number)), model, clip)
        for client in one.drawn:
            parts = np.split(data.tensors[0][client].double().numpy(), ends)
            sent = {name: model[name] + part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}
            for _ in range(1 + again):
                one.add(client, sent)
        released = one.release(stream)
        model, clip = {name: model[name] + part for name, part in released.mean.items()}, released.clip
    return {name: part.tolist() for name, part in model.items()}


def replayed(name, adaptive, again=False):
    def sees(plan):
        found = replay(lambda data, seed: rounds_of(plan, data, seed, again), updates(), by_hand.BUDGETS, plan, holders=6)
        return found.verdict == "refuted"

    return Catcher(name, "replay", sees, lambda: by_hand.planned("scale", adaptive))


FIXED, REPLAYED = replayed("replay of rounds", False), replayed("replay of rounds whose clip follows", True)
TWICE = replayed("replay of rounds in which clients answer twice", False, again=True)


def hand(scheme, adaptive=True):
    """Rounds beside what the definitions say, one client and one number at a time."""
    name = f"rounds by hand ({scheme}{', clip following' if adaptive else ''})"
    return Catcher(name, "test", lambda plan: by_hand.difference(plan) > 1e-4, lambda: by_hand.planned(scheme, adaptive))


SAMPLE, SCALE = hand("sample"), hand("scale")


@catcher("planning rounds whose clip follows", "test")
def PLANNING():
    try:
        by_hand.planned.__wrapped__("sample", True)
    except Infeasible:
        return True
    return False


@catcher("what drop-outs cost", "test")
def DROP_OUTS():
    from sartor_testing import grids

    with tempfile.TemporaryDirectory() as folder:
        try:
            return not grids.drop_outs_are_charged(Path(folder))
        except SartorError as error:
            return "proves a later round" in str(error)


@catcher("how often a group is asked", "test", lambda: by_hand.planned("sample", False))
def ASKED(plan):
    sampler = PoissonSampler(plan.accounted, by_hand.BUDGETS, Stream(1))
    share = np.mean([np.sum(sampler.draw(step).indices < 40) for step in range(6)])
    return abs(share - 40 * plan.accounted.rate[0]) > 6


# --- clips ---


def clipped_by(patch, change):
    right = clipping.clipped
    patch.setattr(running, "clipped", lambda update, clip: change(right, update, clip))


@mutant(attacks.CLIENTS, quick=True)
def update_clipped_at_three_times_the_clip(patch):
    """Updates may be three times as long as the plan says."""
    clipped_by(patch, lambda right, update, clip: right(update, 3 * clip))


@mutant(SAMPLE)
def update_clipped_at_ten_times_the_clip(patch):
    """Updates may be ten times as long as the plan says."""
    clipped_by(patch, lambda right, update, clip: right(update, 10 * clip))


@mutant(FIXED, quick=True)
def update_clipped_array_by_array(patch):
    """Every array of an update is clipped by itself (fedbiomed#1443)."""
    clipped_by(patch, lambda right, update, clip: ([right([part], clip)[0][0] for part in update], right(update, clip)[1]))


@mutant(FIXED, SAMPLE)
def parameter_of_no_dimension_not_clipped(patch):
    """A single number among the arrays is left out of the clip."""

    def skipped(right, update, clip):
        short, length = right([part for part in update if np.ndim(part)], clip)
        return [short.pop(0) if np.ndim(part) else part for part in update], length

    clipped_by(patch, skipped)


@mutant(FIXED, SAMPLE)
def updates_weighted_by_examples(patch):
    """Clipped updates are weighted by how much a client has."""

    def weighted(right, update, clip):
        short, length = right(update, clip)
        return [part * (1 + len(short)) / 2 for part in short], length

    clipped_by(patch, weighted)


@mutant(TWICE, quick=True)
def client_answers_counted_twice(patch):
    """A client that answers a second time is added up a second time."""
    right = Round.add

    def again(self, client, answer):
        if client in self._answered:
            self._answered.discard(client)
            self._waiting[client] = self._shares[client]
        else:
            self._shares = {**getattr(self, "_shares", {}), client: self._waiting.get(client, 1.0)}
        return right(self, client, answer)

    patch.setattr(Round, "add", again)


# --- noise and divisors ---


@mutant(attacks.CLIENTS)
def update_noise_at_a_third(patch):
    """Updates have 30 % of their noise."""
    right = FederatedPlan.update_noise_multiplier
    patch.setattr(FederatedPlan, "update_noise_multiplier", property(lambda self: 0.3 * right.fget(self)))


@mutant(REPLAYED, PLANNING, quick=True)
def adaptive_clipping_accounted_at_inflated_noise(patch):
    """Updates have the accounted noise, although a count is released beside them out of the same (opacus#779)."""
    patch.setattr(FederatedPlan, "update_noise_multiplier", property(lambda self: self.accounted.noise_multiplier))


@mutant(FIXED, SAMPLE)
def divided_by_those_who_answered(patch):
    """The sum is divided by how many answered."""
    right = Round.release

    def observed(self, stream):
        released = right(self, stream)
        scale = self._plan.per_round / max(1, len(self._answered))
        return running.Released({name: part * scale for name, part in released.mean.items()}, released.clip)

    patch.setattr(Round, "release", observed)


@mutant(REPLAYED, SAMPLE)
def noise_before_clipping(patch):
    """Clients' updates get noise before they are clipped, and the sum has none."""
    rng = np.random.default_rng(0)
    clipped_by(patch, lambda right, update, clip: right([part + rng.normal(0, clip, np.shape(part)) for part in update], clip))
    patch.setattr(running, "normal", lambda generator, size, deviation: np.zeros(size))


@mutant(SAMPLE)
def parameter_of_no_dimension_without_noise(patch):
    """A single number among the arrays is released without noise."""
    right = Round.release

    def bare(self, stream):
        sums = dict(zip(self._model, [np.array(total) for total in self._sums], strict=True))
        released = right(self, stream)
        mean = {name: part if np.ndim(part) else sums[name] / self._plan.per_round for name, part in released.mean.items()}
        return running.Released(mean, released.clip)

    patch.setattr(Round, "release", bare)


@mutant(REPLAYED, SAMPLE, quick=True)
def count_without_noise(patch):
    """How many updates were short is released as it is."""
    right = running.normal
    patch.setattr(running, "normal", lambda generator, size, deviation: right(generator, size, deviation) * (size != 1))


@mutant(REPLAYED, SCALE)
def bits_that_do_not_follow_the_clip(patch):
    """Clients with a small share of the clip count as much as others."""
    right = Round.add

    def unscaled(self, client, answer):
        share, before = self._waiting.get(client, 1.0), self._bits
        used = right(self, client, answer)
        self._bits = before + (self._bits - before) / share
        return used

    patch.setattr(Round, "add", unscaled)


@mutant(attacks.SAMPLED_CLIENTS, ASKED)
def clients_asked_at_the_rate_of_another_group(patch):
    """Clients are asked as often as another group is."""
    right = Plan.groups_of
    patch.setattr(Plan, "groups_of", lambda self, budgets: len(self) - 1 - right(self, budgets))


# --- what drop-outs cost ---


def after_rounds(patch, then):
    """Do something after every round, given its ledger, how many nodes were there, which were asked, and their replies."""
    from sartor_testing import grids

    kind = grids.PrivateFedAvg
    configure, aggregate, known = kind.configure_train, kind.aggregate_train, {}

    def configured(self, number, arrays, config, grid):
        messages = list(configure(self, number, arrays, config, grid))
        known.update(there=len(grid.get_node_ids()), asked=[message.metadata.dst_node_id for message in messages])
        return messages

    def aggregated(self, number, replies):
        replies = list(replies)
        result = aggregate(self, number, replies)
        then(self.ledger, known["there"], known["asked"], replies)
        return result

    patch.setattr(kind, "configure_train", configured)
    patch.setattr(kind, "aggregate_train", aggregated)


def refunded(patch, when):
    def refund(ledger, there, asked, replies):
        if when(there, asked, replies):
            ledger._write(replace(ledger._rounds, charged=ledger.charged - 1))
            ledger.save(ledger.saved())  # else it would prove the round

    after_rounds(patch, refund)


@mutant(DROP_OUTS)
def rounds_with_silent_clients_not_charged(patch):
    """A round in which some did not answer costs nothing."""
    refunded(patch, lambda there, asked, replies: len(replies) < len(asked))


@mutant(DROP_OUTS)
def rounds_without_answers_not_charged(patch):
    """A round in which nobody answered costs nothing."""
    refunded(patch, lambda there, asked, replies: not replies)


@mutant(DROP_OUTS)
def rounds_with_failures_not_charged(patch):
    """A round in which somebody failed costs nothing."""
    refunded(patch, lambda there, asked, replies: any(not reply.has_content() for reply in replies))


@mutant(DROP_OUTS)
def rounds_with_absent_clients_not_charged(patch):
    """A round in which not everybody was there costs nothing."""
    refunded(patch, lambda there, asked, replies: there < 16)


@mutant(DROP_OUTS)
def silent_clients_charged_less(patch):
    """Whoever did not answer pays less than others."""
    spared, right = set(), keeping.Ledger.client_accounts

    def note(ledger, there, asked, replies):
        spared.update(f"key {number - 100}" for number in set(asked) - {reply.metadata.src_node_id for reply in replies})

    def accounts(self, keys):
        return {key: replace(own, spent=0.9 * own.spent) if key in spared else own for key, own in right(self, keys).items()}

    after_rounds(patch, note)
    patch.setattr(keeping.Ledger, "client_accounts", accounts)


@mutant(DROP_OUTS)
def rounds_not_charged_on_the_disk(patch):
    """A round without answers is charged in memory alone."""

    def unwritten(ledger, there, asked, replies):
        path = ledger.folder / "rounds.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "charged": ledger.charged - (not replies)}))

    after_rounds(patch, unwritten)
