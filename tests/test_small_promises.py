"""Promises that several rooms keep: what is on a disk is not lost by a kill or a name, and no sentence says more or less than is true."""

import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import sartor
from sartor import pate
from sartor.documents import parse_json, read_json, read_toml
from sartor.errors import SartorError
from sartor.pate.folder import EnsembleFolder

DEEP = "[" * 200_000 + "]" * 200_000
LARGE_DELTAS = ["--epsilon=1,2", "--share=.5,.5", "--holders=100", "--delta=0.5", "--steps=10", "--batch=5"]
KILLED = """
import os, signal, sys
from sartor.pate.folder import EnsembleFolder
from sartor.run import charges
write = charges.write_private
def dying(path, content, *, new=False):
    if path.name == "charged":
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content, new=new)
charges.write_private = dying
EnsembleFolder(sys.argv[1]).aggregate()
"""


@pytest.mark.parametrize(("read", "content"), [(read_json, DEEP), (read_toml, f"a = {DEEP}")])
def test_a_document_that_is_nested_too_deeply_is_told_in_one_sentence(tmp_path, read, content):
    (tmp_path / "deep").write_text(content)
    with pytest.raises(SartorError, match="nested too deeply"):
        read(tmp_path / "deep", "the plan")


@pytest.mark.parametrize("content", [DEEP, DEEP.encode(), "{", b"\xff"])
def test_whatever_is_no_json_is_a_value_error(content):
    with pytest.raises(ValueError):
        parse_json(content)


def test_a_charge_that_a_kill_left_uncounted_is_counted_when_it_is_read(tmp_path):
    people = sartor.Budgets.from_groups([(1.0, 60), (2.0, 40)], delta=1e-5)
    plan = pate.plan(people, "weight", teachers=10, aggregator=pate.GNMax(noise=30))
    kept = tmp_path / "kept here"
    EnsembleFolder.create(kept, plan, people).put(np.zeros((300, 10), int), classes=3)
    assert subprocess.run([sys.executable, "-c", KILLED, str(kept)]).returncode == -signal.SIGKILL
    assert (kept / "charge-00000").exists()
    assert not (kept / "charged").exists()
    assert (EnsembleFolder(kept).account.queries > 0, EnsembleFolder(kept).cut_off) == (True, 1)
    assert (kept / "charged").read_bytes() == b"1"
    os.unlink(kept / "charge-00000")
    with pytest.raises(SartorError, match="lacks charges that it had"):
        EnsembleFolder(kept)


def test_no_labels_replace_no_file_and_the_sentence_is_true(run, tmp_path):
    options = ["pate", "--teachers", "8", "--workers", "1", "--epsilon", "20,60", "--share", ".5,.5", "--delta", "1e-4", "--seed", "1"]
    options += ["--keep", tmp_path / "kept"]
    code, _, err = run(*options, "--labels", "1000")
    assert code == 0
    assert re.search(r"\d+ of the 1,000 labels that were wanted were given: the budgets are exhausted", err)
    paid = tmp_path / "labels.csv"
    paid.write_text("query,label\n0,1\n")
    code, out, err = run(*options, "--labels", "1000", "--further", "--out", paid)
    assert code == 0
    assert paid.read_text() == "query,label\n0,1\n"
    assert "no label was given: the budgets are exhausted, and nothing was written" in err
    assert "no label was given: the budgets are exhausted." in out
    assert "are right" not in out


def rarely_used(*groups, scheme="sample", steps=100, batch=20):
    with pytest.warns(sartor.RarelyUsed) as raised:
        sartor.plan(sartor.Budgets.from_groups(groups, delta=1e-5), scheme, steps=steps, batch=batch, accountant="rdp")
    return str(raised[0].message)


def test_a_warning_does_not_count_fewer_than_ten_holders():
    assert rarely_used((1.5, 3), (8, 997)).startswith("fewer than 10 holders are expected")
    for several in (rarely_used((1.5, 12), (1.501, 3), (8, 985)), rarely_used((1, 997), (1.001, 3), scheme="scale", steps=10)):
        assert not re.search(r"\b(3|15|997|groups)\b", several)
    assert "1 of 2 groups, with 30 of 1000 holders, are expected" in rarely_used((1.5, 30), (8, 970))


def test_a_warning_advises_scale_only_where_it_helps():
    assert '"scale" draws all alike' in rarely_used((1.5, 30), (8, 970))
    for scheme in ("scale", "sample", "uniform"):
        said = rarely_used((1, 500), (2, 500), scheme=scheme, steps=10)
        assert "more steps or a larger batch" in said
        assert "scale" not in said


def test_a_plan_whose_deltas_allow_everything_does_not_say_that_records_are_public(run):
    code, out, err = run("plan", *LARGE_DELTAS)
    assert code == 0
    assert "no noise: these deltas allow it" in out
    assert "public" not in out + err
    assert re.search(r"NoNoise\): the deltas are so large .* protects nobody", err)


def test_a_delta_above_one_in_the_number_of_holders_is_warned_of():
    with pytest.warns(sartor.LargeDelta, match="publish somebody's record"):
        sartor.plan(sartor.Budgets.from_groups([(1, 1_000)], delta=2e-3), steps=10, batch=200, accountant="rdp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sartor.plan(sartor.Budgets.from_groups([(1, 1_000)], delta=1e-3), steps=10, batch=200, accountant="rdp")


@pytest.mark.parametrize("name", ["b.csv", "policy.toml", "another name"])
def test_a_plan_does_not_replace_what_the_command_reads(run, tmp_path, name):
    levels, policy = tmp_path / "b.csv", tmp_path / "policy.toml"
    levels.write_text("holder,level\n" + "".join(f"h{i},strict\n" for i in range(20)))
    policy.write_text("delta = 1e-5\n[levels]\nstrict = 1\n")
    os.link(levels, tmp_path / "another name")
    before = levels.read_bytes(), policy.read_bytes()
    code, out, err = run("plan", "--budgets", levels, "--policy", policy, "--steps", 10, "--batch", 5, "--out", tmp_path / name)
    assert (code, out) == (2, "")
    assert "is a file that this command reads" in err
    assert (levels.read_bytes(), policy.read_bytes()) == before


@pytest.mark.parametrize(("one", "other"), [("Ann", "ann "), ("7", "7.0"), ("Ann  Lee", "ann\u00a0lee")])
def test_one_person_under_two_spellings_has_no_two_budgets(tmp_path, one, other):
    (tmp_path / "b.csv").write_text(f"holder,epsilon\n{one},1\n{other},2\n", encoding="utf-8")
    with pytest.raises(sartor.InvalidBudget, match="may be one person") as refused:
        sartor.Budgets.from_csv(tmp_path / "b.csv", delta=1e-5)
    assert one not in str(refused.value)


def test_links_of_the_readme_work_on_a_package_index():
    """There are no files beside it: every link is absolute, and those into this repository name what is there."""
    root = Path(__file__).parents[1]
    text = (root / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    assert len(links) > 5
    for link in links:
        assert re.match("https://|#", link), link
        here = re.match(r"https://github\.com/sartor-dp/sartor/(?:blob|tree)/main/(.+)", link)
        assert not here or (root / here[1]).exists(), link
    defined = set(re.findall(r"^\[([^\]]+)\]:", text, re.MULTILINE))
    assert set(re.findall(r"(?<!^)\[((?:docs|examples)/[^\]]*)\]", text)) == defined
