"""`sartor federate`: the budgets that it takes are said, and who lies outside of them takes no part."""

from sartor.cli import federate as command
from sartor.federated import Limits


def test_the_limits_of_budgets_and_their_defaults_are_in_the_help(run):
    code, out, _ = run("federate", "--help")
    assert code == 0
    words = " ".join(out.split())
    for option, value in {"floor": "0.1", "ceiling": "100.0", "delta-floor": "1e-10", "delta-ceiling": "0.01"}.items():
        assert f"[default: {value}]" in words.partition(f"--{option} ")[2].partition(" --")[0]


def test_clients_outside_of_the_limits_take_no_part_in_the_commands_plan(run, tmp_path, monkeypatch):
    seen = []

    def started(job):
        seen.append(job)
        return {"accuracy": 0.5, "rounds": 5, "private": True, "plan": {"noise_multiplier": 1.0}, "groups": []}

    monkeypatch.setattr(command, "_simulated", started)
    people = tmp_path / "people.csv"
    people.write_text("holder,epsilon\n" + "".join(f"{client},{1e-3 if client == 5 else 1 + client % 3}\n" for client in range(30)))
    asked = ["federate", "--clients", "30", "--per-round", "10", "--rounds", "5", "--budgets", people, "--accountant", "rdp"]
    assert "an epsilon from 0.1 to 100" in run(*asked)[1]
    assert run(*asked, "--floor", "1.5", "--json")[0] == 0
    usual, stricter = seen
    assert (usual.strategy.min_clients, stricter.strategy.min_clients, usual.settings.clients) == (29, 19, 30)
    assert usual.plan.accounted.holders.sum() == 29
    assert usual.strategy.limits == Limits()
    assert stricter.strategy.limits == Limits(floor=1.5)
    code, _, err = run(*asked, "--floor", "50")
    assert (code, len(seen)) == (2, 2)
    assert "no client declared a usable budget" in err
    code, _, err = run(*asked, "--floor", "5", "--ceiling", "1")
    assert (code, len(seen)) == (2, 2)
    assert "from a positive floor to a larger, finite ceiling" in err
