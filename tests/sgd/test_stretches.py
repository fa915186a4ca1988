"""Norms that are tracked: who takes part up to which norm, paid before the first coin, the same after any stop."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import sartor
from sartor import federated
from sartor.accounting import rdp
from sartor.errors import SartorError
from sartor.individual import costs
from sartor.individual.readings import Readings
from sartor.run.journal import Journal
from sartor.run.sampling import Draw, PoissonSampler
from sartor.sgd import Stream
from sartor.sgd import norms as norming
from sartor.sgd import run as running
from sartor.sgd.norms import Norms
from sartor.sgd.stretches import Stretches
from sartor_testing import many_records
from sartor_testing.amount import most_are_long
from sartor_testing.private_runs import HOLDERS, Stopped, dropping, flat, net, people, records, take, without_noise
from sartor_testing.tracked_runs import CLIP, REFRESH, ByHand, difference_from_by_hand, filtered, gradient, groups

SAME = 1e-5


def tracked(plan=None, *, model=None, seed=1, dataset=None, **settings):
    model = net() if model is None else model
    plan = filtered() if plan is None else plan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    settings = {"loss": functional.cross_entropy, **settings}
    return sartor.make_private(model, optimizer, records() if dataset is None else dataset, people(), plan, seed=seed, **settings)


def fitted(plan=None, *, model=None, **settings):
    plan = filtered() if plan is None else plan
    settings = {"lr": 0.5, "seed": 1, "progress": False, **settings}
    return sartor.fit(dropping() if model is None else model, records(), people(), plan, **settings)


# -- the run


@pytest.mark.parametrize("scheme", most_are_long(["sample", "scale", "equal", "hybrid", "uniform"], 2))
def test_a_run_with_a_filter_equals_an_independent_implementation(scheme):
    assert difference_from_by_hand(filtered(scheme)) < SAME


@pytest.mark.parametrize("settings", [{"max_physical_batch": 3}, {"workers": 2}, {"check": False}])
def test_however_its_steps_are_carried_out(settings):
    assert difference_from_by_hand(filtered(), **settings) < SAME


def test_the_runs_that_are_compared_use_every_rung_and_let_people_rest():
    by_hand = ByHand(filtered(), 5)
    rungs = np.array(by_hand.rungs)
    assert 0.05 < np.mean(rungs == 0) < 0.9
    place = [np.unique(rungs[:, np.array(by_hand.group) == group]) for group in range(len(by_hand.plan))]
    assert sum(len(found[found > 0]) >= 2 for found in place) >= 2
    assert {0.0, 1.0} <= set(np.concatenate(place).tolist())
    assert by_hand.plan.filter.rungs[:, 0].tolist() != [value for value in np.concatenate(place) if 0 < value < 1]


def test_zeroing_a_holder_moves_a_step_by_at_most_their_rung(monkeypatch):
    """Their records as zeros change what they add; everybody else's rungs stay."""
    monkeypatch.setattr(running, "normal", without_noise)
    plan, seen = filtered(), {}
    monkeypatch.setattr(PoissonSampler, "draw", _everybody(plan))
    whole = running.Run._noisy

    def noted(run, sums, step):
        seen[step] = torch.cat([value.flatten().double() for value in sums.values()])
        return whole(run, sums, step)

    monkeypatch.setattr(running.Run, "_noisy", noted)
    for target in (0, 7, 31):
        found = []
        for zeroed in (False, True):
            data = records()
            model, optimizer, loader = tracked(plan, dataset=data, model=net(), check=False)
            if zeroed:
                _silence(loader, target)
            take(model, optimizer, next(iter(loader)))
            found.append(seen[0].clone())
            rung = float(loader.draws.stretches.state()[1]["fraction"][target])
        moved = float((found[0] - found[1]).norm())
        clip = float(plan.clips[groups(plan)[target]])
        assert 0 < moved <= (rung if not zeroed else 1.0) * clip * (1 + 1e-6)
        assert moved == pytest.approx(min(float(gradient(net(), target).norm()), _rung(plan, target) * clip), rel=1e-3)


def _everybody(plan):
    clips = plan.clips[np.array(groups(plan))]
    return lambda self, step: Draw(step, np.arange(HOLDERS), clips)


def _silence(loader, target):
    """A holder who contributes nothing, whatever is drawn."""
    stretches = loader.draws.stretches
    within = stretches.within

    def without(draw):
        found = within(draw)
        kept = found.indices != target
        return Draw(found.step, found.indices[kept], found.clips[kept])

    stretches.within = without


def _rung(plan, holder):
    group = groups(plan)[holder]
    norm = float(gradient(net(), holder).norm()) / float(plan.clips[group])
    return next((rung for rung in plan.filter.rungs[group].tolist() if rung >= norm), 1.0)


def test_when_everybody_rests_steps_are_noise_and_go_on_to_the_end():
    plan = filtered(steps=60, refresh=3, full_steps=3)
    model, optimizer, loader = tracked(plan)
    moved = []
    for step, batch in enumerate(loader):
        assert len(loader) == 60 - step
        before = flat(model).clone()
        take(model, optimizer, batch)
        moved.append(flat(model) - before)
    stretches = loader.draws.stretches
    assert len(moved) == 60 == optimizer.account().steps
    assert stretches.state()[1]["fraction"].sum() == 0
    last = torch.stack(moved[-12:]).double() / 0.5 * plan.batch / plan.noise
    assert abs(float(last.mean())) < 5 / np.sqrt(last.numel())
    assert abs(float(last.var()) - 1) < 5 * np.sqrt(2 / last.numel())


def test_who_rests_is_looked_at_and_never_used():
    class Watched(Dataset):
        def __init__(self):
            self.asked = []

        def __len__(self):
            return HOLDERS

        def __getitem__(self, index):
            self.asked.append(index)
            return records()[index]

    data, plan = Watched(), filtered(steps=30, refresh=15, full_steps=15)
    model, optimizer, loader = tracked(plan, dataset=data, check=False)
    for step, batch in enumerate(loader):
        if step == 15:
            resting = set(np.flatnonzero(loader.draws.stretches.state()[1]["fraction"].numpy() == 0).tolist())
        if step >= 15 and data.asked[-1:] != [0]:  # record 0 stands in for an empty batch, with a clip of 0
            assert not resting & set(data.asked[-len(batch[0]) :])
        take(model, optimizer, batch)
        data.asked.clear()
    assert resting


# -- before the first coin


@pytest.mark.parametrize("workers", [0, 2])
def test_no_batch_of_the_next_stretch_is_drawn_ahead(monkeypatch, workers):
    reached = []
    draw = PoissonSampler.draw
    monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: (reached.append(step), draw(self, step))[1])
    model, optimizer, loader = tracked(workers=workers)
    for batch in loader:
        stretch = loader.run.steps // REFRESH
        assert max(reached) < (stretch + 1) * REFRESH
        take(model, optimizer, batch)


def test_everybody_is_charged_drawn_or_not(monkeypatch):
    plan = filtered()
    monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: Draw(step, np.empty(0, int), np.empty(0)))
    model, optimizer, loader = tracked(plan)
    begun = plan.filter.units[np.array(groups(plan))]
    take(model, optimizer, next(iter(loader)))
    left = loader.draws.stretches.state()[1]["left"].numpy()
    assert np.all(left < begun)


def test_draws_and_steps_out_of_a_stretch_are_refused():
    _, _, loader = tracked()
    stretches = loader.draws.stretches
    with pytest.raises(SartorError, match="another stretch"):
        stretches.within(Draw(0, np.arange(2), np.ones(2)))
    with pytest.raises(SartorError, match="from the first step of a stretch"):
        stretches.begin(REFRESH)
    stretches.begin(0)
    with pytest.raises(SartorError, match="another stretch"):
        stretches.within(Draw(REFRESH, np.arange(2), np.ones(2)))


# -- norms


def test_norms_are_those_of_each_record_alone_without_dropout():
    model = dropping()
    _, _, loader = tracked(model=model)
    found = loader.draws.stretches._norms(HOLDERS, 0)
    assert model.training
    model.eval()
    for holder in range(0, HOLDERS, 5):
        assert found[holder] == pytest.approx(float(gradient(model, holder).norm()), rel=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize(("most", "combine"), [(None, "mean"), (None, "sum"), (3, "mean")])
def test_norms_of_holders_with_several_records(size, most, combine):
    plan = many_records.planned(records_per_holder=most, combine=combine)
    model = net()
    _, _, loader = many_records.private(
        plan, model, max_physical_batch=size, loss=functional.cross_entropy, tracking=sartor.Tracking("strict", 2)
    )
    found = loader.draws.stretches._norms(HOLDERS, 0)
    inputs, targets = many_records.visits().tensors
    for holder in range(0, HOLDERS, 7):
        rows = torch.from_numpy(many_records.owned().records_of(np.array([holder]), most)[0])
        losses = functional.cross_entropy(model(inputs[rows]), targets[rows], reduction=combine)
        own = torch.autograd.grad(losses, list(model.parameters()))
        assert found[holder] == pytest.approx(float(torch.cat([g.flatten() for g in own]).norm()), rel=1e-4)


class Drawing(nn.Module):
    """Takes a random number wherever it is, in a pass over everybody as well."""

    def forward(self, inputs):
        torch.rand(1)
        return inputs


def test_a_pass_over_everybody_leaves_the_runs_random_numbers_alone():
    def end(**settings):
        plan = sartor.plan(people(), steps=6, batch=20, clip=CLIP)
        return flat(fitted(plan, model=nn.Sequential(Drawing(), dropping()), **settings).model)

    assert torch.equal(end(), end(tracking=sartor.Tracking("estimate", 2)))


class Sorting:
    """A collate function that makes each record's input follow the batch's largest."""

    def __call__(self, items):
        inputs = torch.stack([x for x, _ in items])
        return inputs / inputs.abs().max(), torch.stack([y for _, y in items])


def test_norms_that_follow_others_are_refused():
    _, _, loader = tracked(collate=Sorting(), check=False)
    with pytest.raises(SartorError, match="alone and beside others"):
        next(iter(loader))


def test_who_is_looked_at_alone_follows_the_runs_secret(monkeypatch):
    alone = []
    norms = Norms._norms
    monkeypatch.setattr(
        Norms, "_norms", lambda self, holders, size: (alone.extend(holders if len(holders) == 1 else []), norms(self, holders, size))[1]
    )
    found = []
    for seed in (1, 1, 2):
        alone.clear()
        next(iter(tracked(seed=seed)[2]))
        found.append(list(alone))
    assert len(found[0]) == 8  # before everybody, and after
    assert found[0][:4] == found[0][4:]
    assert found[0] == found[1] != found[2]


def test_who_is_not_finite_needs_the_highest_rung():
    inputs, targets = (tensor.clone() for tensor in records().tensors)
    inputs[3] = torch.nan
    _, _, loader = tracked(dataset=TensorDataset(inputs, targets), check=False)
    next(iter(loader))
    assert float(loader.draws.stretches.state()[1]["fraction"][3]) == 1.0


# -- readings


@pytest.mark.parametrize("kind", ["estimate", "strict"])
@pytest.mark.parametrize("scheme", most_are_long(["sequential", "scale", "sample", "hybrid"], 1))
def test_readings_are_the_costs_of_the_norms_that_were_tracked(kind, scheme):
    plan = sartor.plan(people(), scheme, steps=8, batch=20, clip=CLIP)
    result = fitted(plan, model=net(), tracking=sartor.Tracking(kind, 3))
    reading = result.reading
    assert (reading.kind, reading.steps, len(reading)) == (kind, 8, HOLDERS)
    assert np.all(reading.accounts(sensitive=True) <= reading.guarantee)
    assert np.all(reading.guarantee == plan.spent[np.array(groups(plan))])
    assert np.any(reading.accounts(sensitive=True) < 0.99 * reading.guarantee)


def test_strict_readings_clip_each_holder_at_their_tracked_norm(monkeypatch):
    monkeypatch.setattr(running, "normal", without_noise)
    plan = sartor.plan(people(), steps=4, batch=20, clip=CLIP)
    model, optimizer, loader = tracked(plan, tracking=sartor.Tracking("strict", 4))
    batches = iter(loader)
    first = next(batches)
    stretches = loader.draws.stretches
    clips = plan.clips[np.array(groups(plan))]
    before = np.array([float(gradient(net(), holder).norm()) for holder in range(HOLDERS)])
    fraction = stretches.state()[1]["fraction"].numpy()
    assert np.all(fraction * clips >= np.minimum(before, clips) * (1 - 1e-6))
    assert np.all(fraction * clips <= np.minimum(before, clips) * 1.001)
    for parameter in model.parameters():  # gradients grow; the stretch's clips do not
        parameter.data.mul_(3)
    optimizer.run.abandon()
    draw = stretches.within(loader.draws.sampler.draw(0))
    assert np.allclose(draw.clips, (fraction * clips)[draw.indices])
    assert len(first[0])


def test_no_more_enters_a_step_than_the_norm_that_a_strict_reading_tracked(monkeypatch):
    """Norms grow within the stretch, and one holder alone is drawn, so that a step's sum is what they add to it."""
    monkeypatch.setattr(running, "normal", without_noise)
    plan = sartor.plan(people(), steps=4, batch=20, clip=CLIP)
    clips = plan.clips[np.array(groups(plan))]
    target = int(np.argmin([float(gradient(net(), holder).norm()) / clips[holder] for holder in range(HOLDERS)]))
    monkeypatch.setattr(PoissonSampler, "draw", lambda self, step: Draw(step, np.array([target]), clips[[target]]))
    whole, entered = running.Run._noisy, []

    def noted(run, sums, step):
        entered.append(float(torch.cat([value.flatten().double() for value in sums.values()]).norm()))
        return whole(run, sums, step)

    monkeypatch.setattr(running.Run, "_noisy", noted)
    model, optimizer, loader = tracked(plan, tracking=sartor.Tracking("strict", 4))
    own = []
    for batch in loader:
        take(model, optimizer, batch)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(-3)
        plain = net()
        plain.load_state_dict(model.state_dict())
        own.append(float(gradient(plain, target).norm()))
    tracked_norm = float(loader.draws.stretches.state()[1]["fraction"][target]) * clips[target]
    assert tracked_norm < 0.9 * clips[target]
    assert max(own[:-1]) > 1.5 * tracked_norm
    assert max(entered) <= tracked_norm * (1 + 1e-6)


def test_a_filters_reading_is_of_the_rungs_that_clip_and_not_of_the_norms_below_them():
    plan = filtered(ladder=(5, 16))
    model, optimizer, loader = tracked(plan)
    levels = loader.draws.stretches._costs.levels
    assert np.any(levels.values[levels.nearest(plan.filter.rungs)] < plan.filter.rungs)  # rungs lie between levels
    values, seen = levels.values, 0
    for batch in loader:
        state = loader.draws.stretches.state()[1]
        if len(state["levels"]):  # the last stretch's are added up already
            charged, rungs = values[state["levels"][-1].numpy()], state["fraction"].numpy()
            assert np.all(charged >= rungs)
            assert np.all(charged <= 1.001 * rungs)
            seen += 1
        take(model, optimizer, batch)
    assert seen > 2 * REFRESH


def test_estimates_leave_the_run_as_it_is():
    plan = sartor.plan(people(), steps=6, batch=20, clip=CLIP)
    plain, tracked_ = fitted(plan, model=net()), fitted(plan, model=net(), tracking=sartor.Tracking("estimate", 2))
    assert torch.equal(flat(plain.model), flat(tracked_.model))
    assert plain.reading is None


def test_an_account_in_the_middle_tells_nothing_of_who_rests():
    plan = filtered()
    accounts = []
    for seed in (1, 2):
        model, optimizer, loader = tracked(plan, seed=seed)
        found = []
        for batch in loader:
            take(model, optimizer, batch)
            found.append(json.dumps({**optimizer.account().to_json()}))
        accounts.append(found)
    assert accounts[0] == accounts[1]
    assert "Reading(" in repr(loader.reading())
    assert "epsilon" not in repr(loader.reading())


# -- what is refused


def test_what_makes_no_sense_is_refused():
    plain = sartor.plan(people(), steps=4, batch=20, clip=CLIP)
    for settings, sentence in [
        ({"loss": None}, "loss="),
        ({"tracking": sartor.Tracking("strict", 2)}, "leave tracking out"),
    ]:
        with pytest.raises(SartorError, match=sentence):
            tracked(**settings)
    with pytest.raises(SartorError, match="loss="):
        tracked(plain, loss=None, tracking=sartor.Tracking("strict", 2))
    with pytest.raises(SartorError, match="Tracking"):
        tracked(plain, tracking="strict")
    with pytest.raises(SartorError, match="tracks no norms"):
        tracked(plain, loss=None)[2].reading()
    with pytest.raises(SartorError, match="estimate"):
        sartor.Tracking("ladder", 3)
    with pytest.raises(SartorError, match="refresh"):
        sartor.Tracking("strict", 0)
    for wrong in ("4", math.nan, 2.5, True, None):
        with pytest.raises(sartor.SartorError, match="whole number"):
            sartor.Tracking("strict", wrong)


def test_a_plan_with_a_filter_is_not_run_without_it():
    with pytest.raises(SartorError, match="filter"):
        PoissonSampler(filtered(), people(), Stream(1))
    with pytest.raises(SartorError, match="filter"):
        federated.FederatedPlan(filtered())
    with pytest.raises(SartorError, match="filter"):
        federated.plan(people(), "scale", rounds=20, per_round=10, filter="ladder", refresh=2, full_steps=10)


# -- stops


def _ends(folder, plan=None, *, stop=None, resume=False, error=Stopped, **settings):
    def raising(progress):
        if progress.step == stop:
            raise error

    kept = sartor.Checkpoints(folder, every=2, resume=resume)
    return fitted(plan, checkpoints=kept, callbacks=[raising], **settings)


def _tracked_in(folder):
    """The rungs, units and accounts in a checkpoint."""
    found = load_file(next(folder.glob("*.safetensors")))
    return {name: value for name, value in found.items() if name.startswith("tracked/")}


@pytest.mark.parametrize("stop", most_are_long([3, 4, 13, 1, 2, 6, 11], 1))
def test_a_run_that_goes_on_has_the_units_and_rungs_of_the_stretch_that_was_begun(tmp_path, monkeypatch, stop):
    """A stretch goes on with its rungs, whatever norms would be now, and nobody pays for it twice."""
    chosen = []
    choose = Stretches._choose

    def noted(self, step):
        choose(self, step)
        chosen.append((step, self._left.copy(), self._fraction.copy()))

    monkeypatch.setattr(Stretches, "_choose", noted)
    with pytest.raises(Stopped):
        _ends(tmp_path, stop=stop)
    before = list(chosen)
    held = _tracked_in(tmp_path)
    assert np.array_equal(held["tracked/left"].numpy(), before[-1][1])
    assert np.array_equal(held["tracked/fraction"].numpy(), before[-1][2])
    again = _ends(tmp_path, resume=True)
    assert len({step for step, _, _ in chosen}) == len(chosen)
    lefts = [left for _, left, _ in chosen]
    assert all(np.all(later <= earlier) for earlier, later in itertools.pairwise(lefts))
    assert lefts[-1].min() >= 0
    assert again.account.charged == again.account.plan.steps


@pytest.mark.parametrize("kind", most_are_long(["strict", "estimate"], 1))
def test_readings_resume_as_well(tmp_path, kind):
    plan = sartor.plan(people(), "sequential", steps=9, batch=20, clip=CLIP)
    settings = {"tracking": sartor.Tracking(kind, 4)}
    with pytest.raises(Stopped):
        _ends(tmp_path, plan, stop=5, **settings)
    first = _ends(tmp_path, plan, resume=True, **settings).reading
    again = _ends(tmp_path, plan, resume=True, **settings).reading
    assert np.array_equal(first.accounts(sensitive=True), again.accounts(sensitive=True))
    assert np.all(first.accounts(sensitive=True) <= first.guarantee)


def test_units_are_on_the_disk_before_the_first_coin_of_their_stretch(tmp_path, monkeypatch):
    """A kill between the pass over everybody and the first coin costs nobody anything twice."""
    events = []
    choose, draw, write = Stretches._choose, PoissonSampler.draw, Journal.write

    def chosen(self, step):
        choose(self, step)
        events.append(("chosen", step))

    def drawn(self, step):
        events.append(("drawn", step))
        return draw(self, step)

    def written(self, entry, checkpoint=None):
        write(self, entry, checkpoint)
        events.append(("charged", entry.charged))

    monkeypatch.setattr(Stretches, "_choose", chosen)
    monkeypatch.setattr(PoissonSampler, "draw", drawn)
    monkeypatch.setattr(Journal, "write", written)
    result = _ends(tmp_path)
    for place, (what, step) in enumerate(events):
        if what == "chosen":
            assert events[place + 1][0] == "charged"
            assert step < events[place + 1][1] <= step + REFRESH
        if what == "drawn":
            assert max(charged for name, charged in events[:place] if name == "charged") > step
    assert sorted({step for what, step in events if what == "drawn"}) == list(range(result.steps))


def test_a_checkpoint_of_another_way_to_track_is_refused(tmp_path):
    plan = sartor.plan(people(), steps=8, batch=20, clip=CLIP)
    with pytest.raises(Stopped):
        _ends(tmp_path, plan, stop=4, tracking=sartor.Tracking("strict", 3))
    for other in (sartor.Tracking("estimate", 3), sartor.Tracking("strict", 2), None):
        with pytest.raises(SartorError, match="tracked norms in another way"):
            _ends(tmp_path, plan, resume=True, tracking=other)
    _ends(tmp_path, plan, resume=True, tracking=sartor.Tracking("strict", 3))


def test_a_run_that_was_interrupted_amid_a_choice_keeps_the_stretch_before(tmp_path, monkeypatch):
    """Nobody's units are taken by half."""
    add = Readings.add

    def halfway(self, level, steps):
        add(self, level, steps)
        if self.steps > REFRESH:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Readings, "add", halfway)
        _ends(tmp_path)
    assert _ends(tmp_path, resume=True).account.lost <= 2


def test_where_a_choice_was_interrupted_nothing_is_drawn_or_kept(monkeypatch):
    """The readings are of the new stretch already, and the rungs of the one before."""
    _, _, loader = tracked()
    stretches, add = loader.draws.stretches, Readings.add

    def halfway(self, level, steps):
        add(self, level, steps)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Readings, "add", halfway)
        stretches.begin(0)
    for act in (lambda: stretches.begin(0), stretches.state, lambda: next(iter(loader))):
        with pytest.raises(SartorError, match="is not certain"):
            act()


def test_a_loss_that_mixes_is_refused_in_the_pass():
    class Mixed(nn.Module):
        def forward(self, outputs, targets):
            return functional.cross_entropy(outputs, targets, reduction="none") / outputs.detach().abs().max()

    _, _, loader = tracked(loss=Mixed(), check=False)
    with pytest.raises(SartorError):
        next(iter(loader))


def test_the_pass_is_bounded_by_the_physical_batch(monkeypatch):
    seen = []
    backward = norming.Norms._backward
    monkeypatch.setattr(norming.Norms, "_backward", lambda self, piece: (seen.append(piece.rows), backward(self, piece))[1])
    _, _, loader = tracked(max_physical_batch=7)
    next(iter(loader))
    assert max(seen) <= 7


# -- many budgets


def _different(count):
    return sartor.Budgets(epsilon=np.random.default_rng(8).permutation(np.geomspace(1.0, 1.3 if count < 100 else 3.0, count)), delta=1e-5)


def _run_alone(plan, budgets, norms):
    """The stretches of a run without its steps, where everybody's norms are given."""
    refresh = plan.filter.refresh
    stretches = Stretches(plan, budgets, "ladder", refresh, lambda count, step: norms[step // refresh] * plan.clip)
    rungs = []
    for step in range(0, plan.steps, refresh):
        stretches.begin(step)
        rungs.append(stretches.state()[1]["fraction"].numpy().copy())
    return stretches, np.array(rungs)


def _cost(plan, group, rungs):
    """Rényi's epsilon of stretches at these rungs, computed for one holder alone."""
    used = rungs[rungs > 0]
    noise = plan.noise / plan.clips[group] / used
    each = rdp.sampled_gaussian(plan.rate[group], noise, rdp.ORDERS).sum(axis=0) * plan.filter.refresh
    return rdp.to_epsilon(each[None], rdp.ORDERS, plan.delta[[group]])[0]


@pytest.mark.parametrize(("count", "tables"), [(12, 3), pytest.param(60_000, costs.MOST_RATES, marks=pytest.mark.long)])
def test_a_filter_serves_more_budgets_by_sampling_than_there_are_tables(count, tables, monkeypatch):
    monkeypatch.setattr(costs, "MOST_RATES", tables)
    budgets = _different(count)
    asked = {"steps": 5_000, "batch": count * 0.01, "filter": "ladder", "refresh": 250, "full_steps": 3_000, "accountant": "rdp"}
    plan = sartor.plan(budgets, "sample", **asked)
    assert len(np.unique(plan.rate)) == min(count, 128) > tables
    norms = np.random.default_rng(9).lognormal(-0.7, 0.8, (20, count))
    stretches, rungs = _run_alone(plan, budgets, norms)
    assert stretches.state()[1]["left"].min() >= 0
    assert 0 < np.mean(rungs[-1] == 0) < 1
    found, group = stretches.reading(), plan.groups_of(budgets)
    assert np.all(found.accounts(sensitive=True) <= found.guarantee)
    some = np.arange(0, count, max(1, count // 12))
    exact = np.array([_cost(plan, group[holder], rungs[:, holder]) for holder in some])
    assert np.all(found.accounts(sensitive=True)[some] >= np.minimum(exact, found.guarantee[some]))
    assert np.all(found.accounts(sensitive=True)[some] <= exact * (1.02 if tables == 3 else 1.001))


def test_a_run_with_more_budgets_than_tables_goes_on_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(costs, "MOST_RATES", 2)
    budgets = _different(8)
    asked = {"steps": 100, "batch": 0.1, "filter": "ladder", "refresh": 5, "full_steps": 60, "accountant": "rdp"}
    plan = sartor.plan(budgets, "sample", **asked)
    norms = np.random.default_rng(9).lognormal(-0.7, 0.8, (20, 8)) * plan.clip
    whole, again = (Stretches(plan, budgets, "ladder", 5, lambda count, step: norms[step // 5]) for _ in range(2))
    for step in range(0, 100, 5):
        whole.begin(step)
        again.begin(step)
        document, tensors = again.state()
        again = Stretches(plan, budgets, "ladder", 5, lambda count, step: norms[step // 5])
        again.restore(document, tensors)
    assert whole.reading().accounts(sensitive=True).tobytes() == again.reading().accounts(sensitive=True).tobytes()
    for name, value in whole.state()[1].items():
        assert value.numpy().tobytes() == again.state()[1][name].numpy().tobytes()
