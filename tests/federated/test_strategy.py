"""What the strategy releases over many rounds: who is asked, the noise, the clip, the server's step, and what drop-outs cost."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")


from sartor import Budgets, federated
from sartor.errors import SartorError
from sartor.federated.flower import PrivateFedAvg, StrategySettings
from sartor.federated.ledger import Ledger
from sartor_testing.forks import refused_in_a_fork
from sartor_testing.grids import LocalGrid, adds, ask, clients, drop_outs_are_charged, node, record, run, serving

pytestmark = [pytest.mark.filterwarnings("ignore::sartor.errors.NoNoise"), pytest.mark.usefixtures("identity")]

UNLIKELY = 1e-7
LARGE = {"weight": np.zeros((100, 100)), "bias": np.zeros(10_000)}
SIZE = 20_000


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Half of the time of short rounds is waiting for the disk, and no test here is about a loss of power."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def changes(models):
    """What each round changed in a model that began at 0."""
    return np.diff([np.zeros_like(models[0]), *models], axis=0)


def test_clients_are_asked_by_coins_of_their_own_at_the_rates_of_the_plan(tmp_path):
    rounds, members = 300, 20
    grid = LocalGrid(clients([1.0, 2.0, 4.0] * members))
    with serving(tmp_path, grid, {"bias": np.zeros(1)}, rounds=rounds, per_round=12, seed=1) as strategy:
        asked = [frozenset(message.metadata.dst_node_id for message in ask(strategy, grid)) for _ in range(rounds)]
        plan = strategy.ledger.plan.accounted
    rate = dict(zip(plan.epsilon.tolist(), plan.rate.tolist(), strict=True))
    assert 1.3 * rate[1.0] < rate[2.0] < rate[4.0] / 1.3 < 0.5
    for group, epsilon in enumerate((1.0, 2.0, 4.0)):
        own = [100 + i for i in range(group, 3 * members, 3)]
        times = [sum(number in round_ for round_ in asked) for number in own]
        assert all(_usual(count, rounds, rate[epsilon]) for count in times)
        assert _usual(sum(times), rounds * members, rate[epsilon])
    assert len(set(asked)) == rounds  # no coins come twice
    variance = members * sum(q * (1 - q) for q in rate.values())  # of how many are asked, where nobody's coin is another's
    assert np.var([len(round_) for round_ in asked]) == pytest.approx(variance, rel=5 * np.sqrt(2 / rounds))


def _usual(count, trials, rate):
    return min(stats.binom.cdf(count, trials, rate), stats.binom.sf(count - 1, trials, rate)) > UNLIKELY


@pytest.mark.parametrize("scheme", ["sample", "scale"])
def test_every_round_has_the_noise_of_the_plan_whoever_answers(tmp_path, scheme):
    grid = LocalGrid(clients([1.0, 3.0] * 8))
    with serving(tmp_path, grid, LARGE, rounds=9, per_round=5, clip=0.7, scheme=scheme, seed=2) as strategy:
        models = [run(strategy, grid)[1]]
        grid.down.update(grid.nodes)
        models.append(run(strategy, grid)[1])
        grid.gone.update(list(grid.nodes)[1:])
        models.append(run(strategy, grid)[1])
        deviation = strategy.ledger.plan.accounted.noise_multiplier * 0.7 / 5
    assert deviation > 0.1
    for change in changes(models):
        assert change.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * SIZE))
        assert stats.kstest(change / deviation, "norm").pvalue > UNLIKELY


def test_noise_beside_a_count_is_more_and_follows_the_clip(tmp_path):
    grid, rounds = LocalGrid(clients([2.0] * 40)), 12
    options = {"per_round": 20, "clip": 3.0, "adaptive": federated.AdaptiveClip(quantile=0.0, lr=1.0, noise=2.0)}
    with serving(tmp_path, grid, LARGE, rounds=rounds, **options, seed=3) as strategy:
        asked, models = zip(*(run(strategy, grid) for _ in range(rounds)), strict=True)
        multiplier = strategy.ledger.plan.accounted.noise_multiplier
    found, error = changes(models).std(axis=1), 1 / np.sqrt(2 * SIZE)
    applied = 1 / np.sqrt(multiplier**-2 - 4.0**-2)
    assert applied > 1.1 * multiplier
    assert found[0] == pytest.approx(applied * 3.0 / 20, rel=5 * error)
    # every update is short, so the clip falls with how many were asked, and differs from that by the noise on their count: 2 in 20
    differs = np.diff(np.log(found)) + [0.5 + 0.5 * len(numbers) / 20 for numbers in asked[:-1]]
    assert 0.03 < np.sqrt(np.mean(differs**2)) < 0.25


def test_noise_is_new_in_every_round_after_a_restart_and_in_another_run(tmp_path):
    grid, options = LocalGrid(clients([1.0, 3.0] * 8)), {"rounds": 4, "per_round": 5}
    with serving(tmp_path / "one", grid, LARGE, **options) as strategy:
        models = [run(strategy, grid)[1] for _ in range(2)]
    with serving(tmp_path / "one", grid, LARGE, **options) as strategy:
        models += [run(strategy, grid)[1] for _ in range(2)]
    with serving(tmp_path / "other", grid, LARGE, **options) as strategy:
        other = [run(strategy, grid)[1] for _ in range(2)]
    noise = [*changes(models), *changes(other)]
    parts = [half for change in noise for half in np.split(change, 2)]
    assert all(part.std() > 0 for part in parts)
    assert all(abs(np.corrcoef(one, two)[0, 1]) < 6 / np.sqrt(len(one)) for one, two in combinations(parts, 2))


@pytest.mark.parametrize("first", [10.0, 0.1])
def test_the_clip_walks_to_the_quantile_of_lengths_and_goes_on_after_a_restart(tmp_path, first):
    lengths = np.array([0.2, 0.4, 0.8, 1.6, 1e6])
    nodes = {i: node(i, adds(length * np.eye(5)[i]), epsilon="inf", delta=1e-3) for i, length in enumerate(lengths)}
    grid, model = LocalGrid(nodes), {"vector": np.zeros(5)}
    options = {"rounds": 30, "per_round": 5, "clip": first, "adaptive": federated.AdaptiveClip(quantile=0.5, lr=1.0)}
    models = []
    for rounds in (7, 1, 22):
        with serving(tmp_path, grid, model, **options) as strategy:
            models += [run(strategy, grid)[1] for _ in range(rounds)]
    clips = 5 * changes(models)[:, 4]  # what is left of a client that goes very far
    expected = [first]
    for _ in range(29):
        expected.append(expected[-1] * np.exp(0.5 - np.mean(lengths <= expected[-1])))
    assert clips == pytest.approx(expected, rel=1e-6)
    assert np.abs(np.log(clips[-5:] / 0.8)).max() < 0.11


def momentum(gradients, lr):
    """The path of SGD with a momentum of 0.5."""
    speed, place, path = 0.0, 0.0, []
    for gradient in gradients:
        speed = 0.5 * speed + gradient
        place += lr * speed
        path.append(place)
    return path


def adam(gradients, lr):
    """The path of Adam (Kingma and Ba 2015, algorithm 1) at the server's constants."""
    mean, square, place, path = 0.0, 0.0, 0.0, []
    for t, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        place += lr * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.99**t)) + 1e-3)
        path.append(place)
    return path


@pytest.mark.parametrize(("name", "by_hand", "options"), [("sgd", momentum, {"momentum": 0.5}), ("adam", adam, {})])
def test_the_server_takes_the_step_of_its_optimizer(tmp_path, name, by_hand, options):
    moves = [0.4, -0.1, 0.02, 0.3]
    options = {"rounds": 4, "per_round": 3, "optimizer": name, "lr": 0.3, **options}
    path = []
    for half in (moves[:2], moves[2:]):  # with a restart between them
        grid = LocalGrid({i: node(i, adds(), epsilon="inf", delta=1e-3) for i in range(3)})
        with serving(tmp_path, grid, {"vector": np.zeros(1)}, **options) as strategy:
            for move in half:
                grid.nodes.update({i: node(i, adds(move), epsilon="inf", delta=1e-3) for i in range(3)})
                path.append(run(strategy, grid)[1].item())
    assert path == pytest.approx(by_hand(moves, 0.3), rel=1e-6)


def test_each_client_is_clipped_at_the_share_of_its_own_group(tmp_path):
    epsilons, rounds = (20.0, 40.0, 80.0), 15
    nodes = {i: node(i, adds(1e6 * np.eye(3)[i % 3]), epsilon=epsilons[i % 3], delta=1e-3) for i in range(60)}
    grid = LocalGrid(nodes)
    with serving(tmp_path, grid, {"vector": np.zeros(3)}, rounds=rounds, per_round=30, clip=2.0, scheme="scale", seed=4) as strategy:
        asked, models = zip(*(run(strategy, grid) for _ in range(rounds)), strict=True)
        plan = strategy.ledger.plan.accounted
    drawn = np.array([sum(number % 3 == group for numbers in asked for number in numbers) for group in range(3)])
    own = dict(zip(plan.epsilon.tolist(), plan.clips.tolist(), strict=True))
    expected = np.array([own[epsilon] for epsilon in epsilons])
    error = plan.noise_multiplier * plan.clip * np.sqrt(rounds) / drawn  # of the mean of what members of a group added
    assert np.all(np.abs(np.subtract.outer(expected, expected))[~np.eye(3, dtype=bool)] > 10 * error.max())
    assert np.all(np.abs(30 * models[-1] / drawn - expected) < 5 * error)


def test_drop_outs_are_charged(tmp_path):
    assert drop_outs_are_charged(tmp_path)


def test_a_plan_that_was_made_before_is_the_one_that_runs(tmp_path, monkeypatch):
    epsilons = [1.0, 2.0] * 6
    settings = StrategySettings(rounds=2, per_round=4, min_clients=12, wait=0.5, accountant="rdp")
    made = settings.plan(Budgets(epsilons, delta=1e-3))
    grid = LocalGrid(clients(epsilons))
    monkeypatch.setattr("sartor.federated.enrolment.plan", lambda *_, **__: pytest.fail("planned again"))
    strategy = PrivateFedAvg(str(tmp_path), settings, plan=made)
    strategy.begin(grid, record({"bias": np.zeros(1)}))
    with strategy.ledger as ledger:
        assert ledger.plan.record() == made.record()


def test_a_plan_over_others_is_refused_before_anything_is_kept(tmp_path):
    settings = StrategySettings(rounds=2, per_round=4, min_clients=12, wait=0.5, accountant="rdp")
    made = settings.plan(Budgets([1.0, 2.0] * 6, delta=1e-3))
    for epsilons in ([1.0] * 6 + [1.9] * 6, [1.0] * 7 + [2.0] * 5):
        with pytest.raises(SartorError, match="not the budgets that the plan was made for"):
            PrivateFedAvg(str(tmp_path), settings, plan=made).begin(LocalGrid(clients(epsilons)), record({"bias": np.zeros(1)}))
    assert not Ledger.is_in(tmp_path)


def test_a_forked_server_charges_asks_and_releases_nothing(tmp_path):
    grid = LocalGrid(clients([1.0, 3.0] * 8))
    with serving(tmp_path, grid, LARGE, rounds=4, per_round=5) as strategy:
        run(strategy, grid)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert refused_in_a_fork(lambda: ask(strategy, grid)) == "this stream is another process's"
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        asked = ask(strategy, grid)
        replies = list(grid.send_and_receive(asked))
        assert refused_in_a_fork(lambda: strategy.aggregate_train(2, replies)) == "this stream is another process's"
        strategy.aggregate_train(2, replies)
        assert strategy.ledger.charged == 2
    with Ledger(tmp_path) as ledger:
        assert (ledger.charged, ledger._stored()["charged"]) == (2, 2)
