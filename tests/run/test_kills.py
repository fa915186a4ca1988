"""Charge ahead, never repeat: PATE's votes, federated rounds and releases of statistics, killed at random instants."""

import json
import os
import subprocess
import sys

import pytest

from sartor_testing import kill_units


@pytest.mark.parametrize(("kills", "seed"), [(5, 0), *(pytest.param(13, seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_what_was_drawn_is_charged_before_and_nothing_is_drawn_twice(tmp_path, kills, seed):
    command = [sys.executable, "-P", "-W", "ignore", kill_units.__file__, str(tmp_path), str(kills), str(seed)]
    places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # this process's, with what tests share
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == kill_units.KINDS.keys()
    for kind, ended in found.items():
        check(kind, ended, kills)


def check(kind, found, kills):
    assert found["kills"] == kills
    # what the folder says in the end: all that the budgets pay for, of which each kill lost one at most
    assert found["fits"]
    assert found["charged"] == found["whole"] == found["kept"] + found["lost"]
    assert found["lost"] <= kills
    # what was drawn: under a charge that was on the disk by then, and never a second time
    keys, seen = set(), set()
    for note in found["notes"]:
        keys.add(note["key"])
        assert (note["step"] < note["charged"]) if kind == "rounds" else (len(keys) <= note["charged"])
        drawn = (note["purpose"], note["step"]) if kind == "rounds" else (note["key"], note["purpose"], note["step"])
        assert drawn not in seen
        seen.add(drawn)
    assert found["kept"] <= len({note["step"] for note in found["notes"]} if kind == "rounds" else keys) <= found["charged"]
    assert kind != "rounds" or len(keys) <= kills + 1
