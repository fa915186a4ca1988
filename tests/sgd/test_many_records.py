"""People with several records: drawn, clipped and charged as one, however many records they have and however batches are cut."""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.run.sampling import PoissonSampler
from sartor.sgd import Stream
from sartor.sgd import pieces as cutting
from sartor.sgd import run as running
from sartor.sgd.gradients import Call, Formed, Implicit, Owners, PerExample, Product, rule
from sartor.sgd.pieces import Draws, Piece
from sartor_testing.layer_cases import CASES
from sartor_testing.many_records import difference_from_by_hand, lends_no_record_twice, owned, planned, private, trained, visits
from sartor_testing.private_runs import HOLDERS, Stopped, dropping, flat, net, people, take, without_noise

SAME = 1e-5


# -- the step


@pytest.mark.parametrize("scheme", ["scale", "sample", "hybrid", "sequential"])
def test_three_steps_equal_an_independent_implementation(scheme):
    assert difference_from_by_hand(scheme) < SAME


CUT = [None, 1, 2, 3, 5, 16, 1000]


@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("most", [None, 1, 3])
def test_records_per_holder_and_combining_equal_an_independent_implementation(most, combine):
    plan = planned(records_per_holder=most, combine=combine)
    assert difference_from_by_hand(plan=plan) < SAME
    assert difference_from_by_hand(plan=plan, reduction="sum", max_physical_batch=4) < SAME


@pytest.mark.parametrize("size", CUT)
def test_a_holder_who_is_split_over_physical_batches_is_clipped_as_one(size):
    assert difference_from_by_hand(max_physical_batch=size) < SAME
    assert difference_from_by_hand(max_physical_batch=size, reduction="sum") < SAME


@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    size=st.one_of(st.none(), st.integers(1, 15)),
    combine=st.sampled_from(["mean", "sum"]),
    data=st.data(),
)
@settings(max_examples=60)
def test_zeroing_a_whole_holder_changes_the_sum_by_at_most_their_clip(counts, size, combine, data):
    """Any number of records, any physical split, any network of the parity tests; noise off, everybody drawn."""
    torch.manual_seed(sum(counts))
    model, inputs = CASES[data.draw(st.sampled_from(sorted(name for name in CASES if len(CASES[name]()[1]) == 1)))]()
    x = torch.cat([inputs[0]] * (sum(counts) // len(inputs[0]) + 1))[: sum(counts)]
    x = x + 0.1 * torch.randn(x.shape) if x.is_floating_point() else x
    clips = torch.tensor([data.draw(st.sampled_from([0.05, 0.5, 4.0])) for _ in counts])
    target = data.draw(st.integers(0, len(counts) - 1))
    engine = PerExample(model)

    def summed(zeroed):
        """The sum over the pieces, as a run adds it up."""
        run = running.Run.__new__(running.Run)
        run.engine, run.reduction, run._unfinished = engine, "sum", None
        kept = np.array([i for i in range(len(counts)) if i != zeroed], np.int64)
        own = np.array(counts)[kept]
        rows = np.concatenate([np.arange(c) + sum(counts[:i]) for i, c in enumerate(counts) if i != zeroed] or [np.zeros(0, int)])
        ends, total = np.cumsum(own), None
        for first, until, begin, end in cutting._cuts(ends, size or sum(counts)) if len(kept) else ():
            mine, share = own[first:until], 1.0 / torch.tensor(own[first:until], dtype=torch.float64)
            whole = Owners(torch.tensor(mine if until - first > 1 else [end - begin]))
            piece = Piece(
                0,
                0,
                rows[begin:end].tolist(),
                clips[kept[first:until]],
                False,
                whole,
                share if combine == "mean" else None,
                begins=begin == ends[first] - own[first],
                ends=end == ends[until - 1],
            )
            engine.open(piece.clips, piece.owners)
            (50 * model(x[torch.tensor(piece.indices)]).tanh()).sum().backward()
            sums, run._unfinished = run._summed(piece)
            if sums:
                total = sums if total is None else {name: value + total[name] for name, value in sums.items()}
        return total

    everybody, others = summed(None), summed(target)
    moved = sum(float((value - (0 if others is None else others[n])).double().square().sum()) for n, value in everybody.items()) ** 0.5
    assert moved <= float(clips[target]) + 1e-5 * float(clips.sum())


def test_rounding_lifts_nobody_who_is_split_over_pieces_above_their_clip():
    """Of the very numbers that enter the sum, in single precision, which rounds up as often as down."""
    run = running.Run.__new__(running.Run)
    run.engine = PerExample(net())
    generator = torch.Generator().manual_seed(6)
    for records in (1, 3) * 25:
        whole = {n: torch.randn(p.shape, generator=generator, dtype=torch.float64) for n, p in run.engine.parameters.items()}
        share = torch.full((1,), 1 / records, dtype=torch.float64)
        piece = Piece(0, 1, [0], torch.tensor([0.3]), True, Owners(torch.tensor([1])), share, begins=False)
        entering = run._clipped(whole, piece)
        assert math.sqrt(sum(float(value.double().square().sum()) for value in entering.values())) <= float(piece.clips[0])


def test_a_holder_with_few_records_lends_none_twice_and_one_with_many_lends_different_ones():
    assert lends_no_record_twice()


def test_every_set_of_records_is_equally_likely():
    ownership = sartor.Ownership([0] * 5 + [1] * 2, 2)
    drawn = [
        tuple(ownership.records_of(np.array([0, 1]), 2, int(Stream(3).generator("records", step).integers(2**64, dtype=np.uint64)))[0][:2])
        for step in range(4000)
    ]
    counts = [drawn.count(pair) for pair in itertools.combinations(range(5), 2)]
    assert sum(counts) == 4000
    assert sum((count - 400) ** 2 / 400 for count in counts) < 33.7  # chi square of 9 degrees, one in ten thousand


@given(st.data())
@settings(max_examples=60)
def test_nobodys_choice_of_records_depends_on_who_else_was_drawn(data):
    ownership = owned()
    holders = np.array(sorted(data.draw(st.sets(st.integers(0, HOLDERS - 1), min_size=1))))
    most, secret = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2**64 - 1))
    together, counts = ownership.records_of(holders, most, secret)
    alone = [ownership.records_of(np.array([holder]), most, secret)[0] for holder in holders]
    assert np.array_equal(together, np.concatenate(alone))
    assert [len(one) for one in alone] == counts.tolist()


def test_holders_with_equally_many_records_lend_theirs_independently():
    ownership = sartor.Ownership([0] * 4 + [1] * 4, 2)
    same = 0
    for secret in range(3000):
        found, _ = ownership.records_of(np.array([0, 1]), 2, secret)
        same += np.array_equal(found[:2], found[2:] - 4)
    assert abs(same - 500) < 5 * math.sqrt(3000 * 5 / 36)  # one of six pairs


@given(ends=st.lists(st.integers(1, 9), min_size=1, max_size=30), size=st.integers(1, 20))
def test_pieces_hold_every_record_once_and_cut_only_whom_they_must(ends, size):
    counts = np.array(ends)
    total, cuts = np.cumsum(counts), list(cutting._cuts(np.cumsum(counts), size))
    assert [i for _, _, begin, end in cuts for i in range(begin, end)] == list(range(int(total[-1])))
    for first, until, begin, end in cuts:
        assert 0 < end - begin <= size
        whole = begin == total[first] - counts[first] and end == total[until - 1]
        assert whole or (until - first == 1 and counts[first] > size)


def test_holders_are_drawn_by_one_coin_each_whatever_they_lent():
    plan = planned(steps=2000, clip=0.05)
    draws = Draws(plan, PoissonSampler(plan, people(), Stream(4)), Stream(4), owned(), None)
    drawn = np.zeros(HOLDERS)
    for step in range(plan.steps):
        (piece,) = draws.pieces(step)
        if float(piece.clips.max()) > 0:
            mine = np.unique(owned().of_record[piece.indices])
            assert len(mine) == len(piece.clips)
            drawn[mine] += 1
    rate = plan.rate[plan.groups_of(people())]
    away = (drawn - plan.steps * rate) / np.sqrt(plan.steps * rate * (1 - rate))
    assert np.abs(away).max() < 4.5
    assert abs(np.corrcoef(away, owned().counts)[0, 1]) < 0.5


def test_one_record_each_is_the_run_without_an_ownership():
    plan = sartor.plan(people(), steps=3, batch=20, clip=0.05)
    data = TensorDataset(*(tensor[:HOLDERS] for tensor in visits().tensors))
    found = []
    for ownership in (None, sartor.Ownership(np.arange(HOLDERS), HOLDERS)):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model, optimizer, loader = sartor.make_private(model, optimizer, data, people(), plan, ownership=ownership, seed=3)
        for batch in loader:
            take(model, optimizer, batch)
        found.append(flat(model))
    assert torch.equal(*found)


def test_the_order_of_records_changes_nothing_but_the_order_of_sums():
    order = np.random.default_rng(1).permutation(len(owned()))
    again = sartor.Ownership(owned().of_record[order], HOLDERS)
    data = TensorDataset(*(tensor[torch.from_numpy(order)] for tensor in visits().tensors))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader = sartor.make_private(model, optimizer, data, people(), planned(), ownership=again, seed=11)
    for batch in loader:
        take(model, optimizer, batch)
    assert torch.allclose(flat(model), trained(planned(), seed=11), atol=1e-6)


# -- fit, accounts, checkpoints


def fitted(plan=None, **settings):
    settings = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), "seed": 1, "progress": False, **settings}
    plan = planned(steps=9, records_per_holder=4) if plan is None else plan
    return sartor.fit(dropping(), visits(), people(), plan, ownership=settings.pop("ownership", owned()), **settings)


def test_accounts_count_holders_and_records():
    document = fitted().account.to_json()
    assert (document["holders"], document["records"]) == (HOLDERS, len(owned()))
    assert f"60 holders ({len(owned())} records)" in str(fitted().account)
    assert f"60 holders ({len(owned())} records)" in str(planned())
    shown = planned(records_per_holder=4).to_json()
    assert (shown["holders"], shown["records"], shown["records_per_holder"], shown["combine"]) == (HOLDERS, len(owned()), 4, "mean")


def test_what_a_plan_says_of_records_survives_storage():
    plan = planned(records_per_holder=4, combine="sum")
    for again in (sartor.Plan.from_json(plan.record()), copy.deepcopy(plan), sartor.Plan.from_json(plan.to_json(sensitive=True))):
        assert again == plan
        assert (again.records, again.records_per_holder, again.combine) == (len(owned()), 4, "sum")
    assert plan != planned(records_per_holder=4) != planned(records_per_holder=3)
    assert planned().to_json()["records_per_holder"] == "all"


def test_whose_records_are_and_what_a_plan_says_of_them_survive_pickling():
    for plan in (planned(), planned(records_per_holder=4, combine="sum"), sartor.plan(people(), steps=3, batch=20, records_per_holder=2)):
        for again in (pickle.loads(pickle.dumps(plan)), copy.copy(plan)):
            assert again == plan
            assert again.by_holder
    assert pickle.loads(pickle.dumps(owned())) == copy.deepcopy(owned()) == owned()


def test_a_plan_for_so_many_records_of_each_holder_is_by_holder_however_many_there_are():
    plan = sartor.plan(people(), steps=3, batch=20, records_per_holder=2, combine="sum")
    assert plan.records is None
    for stored in (plan.record(), plan.to_json(sensitive=True)):
        assert sartor.Plan.from_json(stored) == plan
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = TensorDataset(*(tensor[:HOLDERS] for tensor in visits().tensors))
    with pytest.raises(SartorError, match="say whose each record is"):
        sartor.make_private(model, optimizer, data, people(), plan)


def test_how_records_are_combined_survives_storage_whatever_else_is_said():
    plan = sartor.plan(people(), steps=3, batch=20, combine="sum")
    assert sartor.Plan.from_json(plan.record()) == plan
    assert plan.record() != sartor.plan(people(), steps=3, batch=20).record()


@pytest.mark.parametrize("size", [None, 3])
def test_a_run_that_resumes_takes_the_steps_that_were_not_charged(tmp_path, size):
    execution = sartor.Execution(max_physical_batch=size)

    def stop(progress):
        if progress.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(execution=execution, checkpoints=sartor.Checkpoints(tmp_path / "run", every=2), callbacks=[stop])
    account = fitted(execution=execution, checkpoints=sartor.Checkpoints(tmp_path / "run", resume=True)).account
    assert (account.steps, account.lost) == (account.plan.steps, 2)


def test_a_run_does_not_resume_with_records_that_are_owned_otherwise(tmp_path):
    def stop(progress):
        if progress.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        fitted(checkpoints=sartor.Checkpoints(tmp_path / "run", every=2), callbacks=[stop])
    swapped = owned().of_record.copy()
    one, other = 0, int(np.flatnonzero(swapped != swapped[0])[0])
    swapped[[one, other]] = swapped[[other, one]]
    with pytest.raises(SartorError, match="another ownership of its records"):
        fitted(checkpoints=sartor.Checkpoints(tmp_path / "run", resume=True), ownership=sartor.Ownership(swapped, HOLDERS))


def test_per_group_figures_follow_the_holders_of_records():
    result = fitted(evaluation=sartor.Evaluation(sensitive=True))
    groups = planned(steps=9, records_per_holder=4).groups_of(people())[owned().of_record]
    result.model.eval()
    with torch.no_grad():
        inputs, targets = visits().tensors
        losses = functional.cross_entropy(result.model(inputs), targets, reduction="none").double().numpy()
    expected = [losses[groups == group].mean() for group in range(4)]
    np.testing.assert_allclose(result.sensitive.loss, expected, rtol=1e-5)


def test_all_records_of_protected_people_are_refused_as_public():
    mine = TensorDataset(*(tensor[-30:] for tensor in visits().tensors))
    with pytest.raises(SartorError, match="trained on under a budget"):
        fitted(evaluation=sartor.Evaluation(mine))


def test_a_gradient_that_is_not_finite_silences_its_holder_alone():
    poisoned = [tensor.clone() for tensor in visits().tensors]
    record = int(np.flatnonzero(owned().counts[owned().of_record] > 3)[0])
    poisoned[0][record] = float("nan")
    holder = owned().of_record[record]
    plan = planned(steps=3, batch=59, scheme="uniform")
    for size in (None, 2):
        model, optimizer, loader = private(plan, dataset=TensorDataset(*poisoned), seed=2, max_physical_batch=size, check=False)
        draws = [set(owned().of_record[piece.indices]) for piece in loader.draws.pieces(0)]
        assert any(holder in drawn for drawn in draws)
        for batch in loader:
            take(model, optimizer, batch)
            if optimizer.took_step:
                break
        assert flat(model).isfinite().all()


# -- what is refused


def test_bad_ownerships_are_refused_with_their_reason():
    names = [f"p{i}" for i in range(HOLDERS)]
    named = sartor.Budgets(people().epsilon, delta=1e-3, holders=names)
    of = [names[i] for i in owned().of_record]
    for given_ in (of, np.array(of), tuple(of), iter(of)):
        assert sartor.Ownership.of(given_, named) == sartor.Ownership(owned().of_record, HOLDERS, names) != owned()
    cases = [
        (["p0", *of], named, None),
        ([*of[:-1], "nobody"], named, "1 of .* records name a holder who has no budget"),
        ([*of[:-1], "P0 "], named, "differ from one only in spaces, case"),
        ([*of[:-1], None], named, "1 of .* records have no holder"),
        ([*of[:-1], " "], named, "records have no holder"),
        ([*of[:-1], float("nan")], named, "records have no holder"),
        ([*of[:-1], ["p0", "p1"]], named, "name several holders"),
        ([*of[:-1], {"p0", "p1"}], named, "name several holders"),
        ([name for name in of if name != "p7"], named, "1 of 60 budgets are for holders who have no record"),
        (of, people(), "carry no names"),
        ("p0", named, "one name for each record first"),
        (named, of, "one name for each record first|no names"),
        ([], named, "no records"),
    ]
    for given_, budgets, reason in cases:
        if reason is None:
            assert len(sartor.Ownership.of(given_, budgets)) == len(of) + 1
        else:
            with pytest.raises(SartorError, match=reason):
                sartor.Ownership.of(given_, budgets)


def test_numbers_are_names_too():
    budgets = sartor.Budgets([1.0, 2.0], delta=1e-5, holders=["7", "8"])
    assert sartor.Ownership.of(np.array([7, 8, 7]), budgets).of_record.tolist() == [0, 1, 0]
    assert sartor.Ownership.of(torch.tensor([8, 7]), budgets).of_record.tolist() == [1, 0]


def test_budgets_that_differ_within_one_holder_are_refused_or_the_strictest_holds():
    each = sartor.Budgets([1.0, 3.0, 2.0, 3.0], delta=[1e-5, 1e-6, 1e-7, 1e-6], reserve=0.1)
    with pytest.raises(SartorError, match="1 of 2 holders have records with different budgets"):
        sartor.Ownership.gather(["a", "b", "a", "b"], each)
    budgets, ownership = sartor.Ownership.gather(["a", "b", "a", "b"], each, strictest=True)
    assert (budgets.epsilon.tolist(), budgets.delta.tolist(), budgets.reserve) == ([1.0, 3.0], [1e-7, 1e-6], 0.1)
    assert ownership.of_record.tolist() == [0, 1, 0, 1]
    with pytest.raises(SartorError, match="differ from another only in spaces, case"):
        sartor.Ownership.gather(["a", "A", "a", "b"], each, strictest=True)


@pytest.mark.parametrize(("epsilon", "delta"), [([2.0, 2.0], [1e-5, 1e-6]), ([2.0, 1.0], [1e-5, 1e-5])], ids=["delta", "epsilon"])
def test_an_epsilon_or_a_delta_alone_makes_budgets_differ(epsilon, delta):
    each = sartor.Budgets(epsilon, delta=delta)
    with pytest.raises(SartorError, match="1 of 1 holders have records with different budgets"):
        sartor.Ownership.gather(["a", "a"], each)
    budgets, _ = sartor.Ownership.gather(["a", "a"], each, strictest=True)
    assert (budgets.epsilon[0], budgets.delta[0]) == (min(epsilon), min(delta))


def test_records_plans_and_ownerships_must_belong_together():
    fewer = TensorDataset(*(tensor[:-1] for tensor in visits().tensors))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plain = sartor.plan(people(), steps=3, batch=20)
    other = sartor.Ownership(np.repeat(np.arange(HOLDERS), 2), HOLDERS)
    cases = [
        (visits(), plain, None, "say whose each record is"),
        (visits(), planned(), None, "data set has|made for holders with several records"),
        (fewer, planned(), owned(), "every record has one holder"),
        (TensorDataset(torch.zeros(120, 4), torch.zeros(120).long()), planned(), other, "plan with this one"),
        (visits(), planned(), owned().of_record, "ownership is a sartor.Ownership"),
        (visits(), planned(), sartor.Ownership(np.append(owned().of_record[:-1], HOLDERS), HOLDERS + 1), "but there are 60 budgets"),
    ]
    for data, plan, ownership, reason in cases:
        with pytest.raises(SartorError, match=reason):
            sartor.make_private(model, optimizer, data, people(), plan, ownership=ownership)
    for wrong in ({"records_per_holder": 0}, {"records_per_holder": 1.5}, {"records_per_holder": True}, {"combine": "max"}):
        with pytest.raises(SartorError, match="records"):
            sartor.plan(people(), steps=3, batch=20, **wrong)
    with pytest.raises(SartorError, match="ownership is of 2 holders"):
        sartor.plan(people(), steps=3, batch=20, ownership=sartor.Ownership([0, 1], 2))


def test_nothing_shows_whose_a_record_is():
    model, optimizer, loader = private()
    iterator = iter(loader)
    next(iterator)
    shown = "".join(map(repr, (owned(), loader, loader.draws, optimizer, optimizer.run._piece)))
    assert "tensor" not in shown
    assert "array" not in shown
    assert repr(owned()) == f"Ownership(60 holders, {len(owned())} records)"
    del iterator
    model.zero_grad()


def test_a_rule_that_adds_rows_up_wrongly_fails_the_self_check(monkeypatch):
    right = Owners.summed
    monkeypatch.setattr(Owners, "summed", lambda self, gradients: 1.1 * right(self, gradients))

    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            return self.inner(x)

    model, optimizer, loader = private(model=Sized())
    with pytest.raises(SartorError, match="self-check of the first step failed"):
        for batch in loader:
            take(model, optimizer, batch)


def test_without_noise_nothing_else_moves(monkeypatch):
    """The whole way, from the loader to the parameters: zeroing a holder's records moves one step by at most their clip."""
    monkeypatch.setattr(running, "normal", without_noise)
    plan = planned(steps=1, batch=59, scheme="uniform", clip=0.5)
    holder = int(np.argmax(owned().counts))
    clip = plan.clips[plan.groups_of(people())[holder]]
    for size, combine in itertools.product((None, 2, 30), ("mean", "sum")):
        made = planned(steps=1, batch=59, scheme="uniform", clip=0.5, combine=combine)
        found = []
        for kept in (True, False):
            draw = PoissonSampler.draw
            if not kept:

                def without(self, step, draw=draw):
                    drawn = draw(self, step)
                    mine = drawn.indices != holder
                    assert not mine.all()
                    return type(drawn)(step, drawn.indices[mine], drawn.clips[mine])

                monkeypatch.setattr(PoissonSampler, "draw", without)
            model, optimizer, loader = private(made, seed=2, lr=1.0, max_physical_batch=size)
            for batch in loader:
                take(model, optimizer, batch)
            found.append(flat(model))
            monkeypatch.setattr(PoissonSampler, "draw", draw)
        moved = float((found[0] - found[1]).norm()) * plan.batch
        assert 0 < moved <= clip * (1 + 1e-4)


# -- what user code may do on the way: checks are of people, not of rows


class Others(nn.Module):
    """Reaches for the rows of other people, whom it tells apart by a number in the record."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        who, rest = x[:, :1], x[:, 1:]
        apart = (who != who.T).to(rest.dtype)
        return self.inner(rest + apart @ rest)


def telling():
    """Records that begin with a number for their holder; few holders have nearly all records."""
    counts = np.where(np.arange(HOLDERS) % 10 == 0, 40, 2)
    ownership = sartor.Ownership(np.repeat(np.arange(HOLDERS), counts), HOLDERS)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(ownership), 4, generator=generator)
    x[:, 0] = torch.from_numpy(ownership.of_record.copy()).float()
    return TensorDataset(x, torch.randint(0, 3, (len(x),), generator=generator)), ownership


@pytest.mark.parametrize("size", [None, 32])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_model_that_reaches_for_other_people_is_refused_though_pieces_of_one_person_come_first(size, seed):
    data, ownership = telling()
    plan = sartor.plan(people(), steps=30, batch=20, ownership=ownership)
    model = Others()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(
        model, optimizer, data, people(), plan, ownership=ownership, seed=seed, max_physical_batch=size
    )
    with pytest.raises(SartorError, match="self-check of the first step failed"):
        for batch in loader:
            take(model, optimizer, batch)
    assert optimizer.account().steps == 0


def neighbours(items):
    """Adds to each record the one before it, where that is somebody else's."""
    x, y = torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items])
    before = x.roll(1, 0)
    apart = (before[:, :1] != x[:, :1]).float()
    return torch.cat([x[:, :1], x[:, 1:] + apart * before[:, 1:]], 1), y


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_a_collate_function_that_mixes_people_where_they_meet_is_refused_at_once(seed):
    data, ownership = telling()
    plan = sartor.plan(people(), steps=10, batch=20, ownership=ownership)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = sartor.make_private(
        model, optimizer, data, people(), plan, ownership=ownership, seed=seed, collate=neighbours
    )
    with pytest.raises(SartorError, match="not the same alone as in its batch"):
        for batch in loader:
            take(model, optimizer, batch)
    assert optimizer.account().steps == 0


def test_a_rule_that_gives_rows_other_peoples_factors_is_refused():
    class Tripled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    @rule(Tripled, together=True)
    def tripled(call: Call):
        left, right = 3 * call.gradient, call.input
        if call.owners is None:
            return {"weight": Product(left, right), "bias": Formed(left)}
        norms = call.owners.summed(left[:, :, None] * right[:, None, :]).double().square().sum((1, 2))

        def weigh(factors):  # as if everybody had equally many rows
            rows = factors.repeat_interleave(-(-len(left) // len(factors)))[: len(left)]
            return (left * rows[:, None]).T @ right

        return {"weight": Implicit(norms, weigh), "bias": Formed(call.owners.summed(left))}

    model, optimizer, loader = private(model=Tripled(4, 3))
    with pytest.raises(SartorError, match="not added up as those of a naive loop"):
        for batch in loader:
            take(model, optimizer, batch)


def test_one_record_that_is_not_finite_does_not_stop_a_run():
    data = TensorDataset(*(tensor.clone() for tensor in visits().tensors))
    data.tensors[0][:] = float("inf")
    for size in (None, 1, 3):
        model, optimizer, loader = private(dataset=data, max_physical_batch=size, check=False)
        for batch in loader:
            take(model, optimizer, batch)
        assert optimizer.account().steps == planned().steps
        assert flat(model).isfinite().all()


def test_an_ownership_serves_only_the_budgets_that_it_was_made_for():
    names = [f"p{i}" for i in range(HOLDERS)]
    named = sartor.Budgets(people().epsilon, delta=1e-3, holders=names)
    ownership = sartor.Ownership.of([names[i] for i in owned().of_record], named)
    other = named.ordered_as(names[::-1])
    plan = sartor.plan(named, steps=3, batch=20, ownership=ownership)
    for budgets in (other, people()):
        with pytest.raises(SartorError, match="other names, or in another order"):
            sartor.plan(budgets, steps=3, batch=20, ownership=ownership)
        with pytest.raises(SartorError, match="other names, or in another order"):
            sartor.fit(net(), visits(), budgets, plan, ownership=ownership)
        with pytest.raises(SartorError, match="other names, or in another order"):
            ownership.only(np.arange(5), budgets)
    assert sartor.fit(net(), visits(), named, plan, ownership=ownership, progress=False).steps == 3


def test_an_ownership_cannot_be_changed():
    ownership = copy.deepcopy(owned())
    assert ownership == owned()
    for name, value in {"of_record": owned().of_record[::-1], "holders": 3, "names": None, "counts": 1}.items():
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(ownership, name, value)
    with pytest.raises(ValueError):
        ownership.of_record[0] = 1


def test_names_are_of_one_person_each():
    budgets = sartor.Budgets(np.ones(4), delta=1e-5)
    cases = {
        "name nobody": [["ann", "nan", "nan", "bob"], ["unknown", "unknown", "a", "b"], ["N.A.", "N.A.", "a", "b"]],
        "are several others": [["ann", "bob", "ann;bob", "carl"], ["ann", "bob", "bob, ann", "carl"]],
        "text or a whole number": [[b"a", "b", "c", "d"], [1.0, 2.0, 3.0, 4.0], [object()] * 4, [True, False, True, False]],
        "differ from another only": [
            ["O'Brien", "O’Brien", "a", "b"],
            ["a-b", "a‐b", "c", "d"],
            ["ann", "ann\x00", "b", "c"],
            ["1,000", "1000", "b", "c"],
            ["٧", "7", "a", "b"],
        ],
    }
    for reason, wrong in cases.items():
        for names in wrong:
            with pytest.raises(SartorError, match=reason):
                sartor.Ownership.gather(names, budgets)
    for right in (["Doe, John", "Doe, Jane", "unknown", "x"], ["a;b", "c", "d", "e"], [np.int64(1), 2, "3", torch.tensor(4)]):
        assert sartor.Ownership.gather(right, budgets)[1].holders == 4


def test_a_plan_for_one_record_each_is_no_plan_by_holder():
    """Ids of records make every record a holder: what a person with twenty of them gets is still what training by record gives."""
    from sartor.plans.persons import spent_by_person

    plain = sartor.plan(people(), steps=3, batch=20)
    each = sartor.plan(people(), steps=3, batch=20, ownership=sartor.Ownership(np.arange(HOLDERS), HOLDERS))
    assert not each.by_holder
    assert (spent_by_person(each, 20) == spent_by_person(plain, 20)).all()
    assert (spent_by_person(plain, 20) > spent_by_person(plain, 1)).all()
    assert (spent_by_person(planned(), 20) == spent_by_person(planned(), 1)).all()
