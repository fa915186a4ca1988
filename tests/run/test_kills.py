"""Charge ahead, never repeat: PATE's votes, federated rounds and releases of statistics, killed at random instants."""

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest

from sartor.run.stream import Stream
from sartor_testing import kill_units


@pytest.mark.parametrize(("kills", "seed"), [(5, 0), *(pytest.param(13, seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_what_was_drawn_is_charged_before_and_nothing_is_drawn_twice(tmp_path, kills, seed):
    command = [sys.executable, "-P", "-W", "ignore", kill_units.__file__, str(tmp_path), str(kills), str(seed)]
    places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # this process's, with what tests share
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == kill_units.KINDS.keys()
    for kind, runs in found.items():
        assert sum(ended["kills"] for ended in runs) == kills
        for ended in runs:
            check(kind, ended)


def check(kind, found):
    # what the folder says in the end: all that the budgets pay for, of which each kill lost one at most
    assert found["fits"]
    assert found["charged"] == found["whole"] == found["kept"] + found["lost"]
    assert found["lost"] <= found["kills"]
    # what was drawn: under a charge that was on the disk by then, and never a second time
    keys, seen = set(), set()
    for note in found["notes"]:
        keys.add(note["key"])
        assert (note["step"] < note["charged"]) if kind == "rounds" else (len(keys) <= note["charged"])
        drawn = (note["purpose"], note["step"]) if kind == "rounds" else (note["key"], note["purpose"], note["step"])
        assert drawn not in seen
        seen.add(drawn)
    assert found["kept"] <= len({note["step"] for note in found["notes"]} if kind == "rounds" else keys) <= found["charged"]
    assert kind != "rounds" or len(keys) <= found["kills"] + 1


def contents(path):
    """A file as it is, and what is packed in it."""
    found = [path.read_bytes()]
    if (begin := found[0].find(b"PK\x03\x04")) >= 0:
        with zipfile.ZipFile(io.BytesIO(found[0][begin:])) as archive:
            found += [archive.read(name) for name in archive.namelist()]
    return found


@pytest.mark.parametrize("kind", kill_units.KINDS)
def test_no_key_that_anything_was_drawn_with_is_in_a_file(tmp_path, monkeypatch, kind):
    keys, right = set(), Stream.generator

    def generator(self, purpose, step):
        found = right(self, purpose, step)
        keys.update({self._key, found.bit_generator.state["s"]["seed"][:2].tobytes()})
        return found

    monkeypatch.setattr(Stream, "generator", generator)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    work = kill_units.KINDS[kind](tmp_path / "kept")
    work.begin()
    work.go_on()
    everything = [content for path in tmp_path.rglob("*") if path.is_file() for content in contents(path)]
    assert len(keys) >= 2
    assert len(everything) > 3
    assert not any(form in content for key in keys for form in (key, key[::-1], key.hex().encode()) for content in everything)
