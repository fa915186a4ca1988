"""The part of a run's page that tells what was released: from stored answers alone, exchanged as a whole, whatever names are in it."""

import math
import os
import stat
from html import escape
from types import SimpleNamespace

import numpy as np
import pytest

import sartor
from sartor.errors import SartorError
from sartor.individual.fare import Fare
from sartor.individual.request import Figures, Histogram, Release, Request
from sartor.individual.reserve import Reserve
from sartor.report import groups, page, released
from sartor.report.folder import RunFolder
from sartor.run.files import lock

PEOPLE = sartor.Budgets.from_groups([(1.0, 60), (2.0, 40)], delta=1e-4, reserve=0.5)
PLAN = sartor.plan(PEOPLE, steps=5, batch=10, accountant="rdp")
FIGURES = Figures(np.linspace(0.1, 0.9, 100))


def release(**more):
    return Release(epsilon=0.1, delta=1e-5, relation=PLAN.relation, **more)


def row(name="a", accuracy=0.8125, holders=50):
    return {"kind": name, "holders": holders, "account": 0.4321, "accuracy": accuracy, "loss": 1.2345}


@pytest.fixture
def finished(tmp_path):
    """The folder of a run, as it is when that has ended."""
    folder = RunFolder(tmp_path / "run")
    with folder:
        folder.create({"individual": "strict"}, PLAN, PEOPLE)
        part = released.part((), PLAN, private=True)
        model = SimpleNamespace(state_dict=dict)
        folder.finish(model, {"private": True}, page.page("a run", page.paragraph("before"), part, page.paragraph("after")))
    return folder


def test_before_anything_is_released_the_page_says_how_or_why_not():
    assert "sartor account RUN --release" in released.part((), PLAN, private=True)
    without = sartor.plan(PEOPLE.with_reserve(0.0), steps=5, batch=10, accountant="rdp")
    assert "no reserve" in released.part((), without, private=True)
    assert "not private" in released.part((), PLAN, private=False)


def test_every_answer_stands_with_its_cost_and_as_no_guarantee():
    answers = [
        release(mean=0.6543, quantiles={0.1: 0.2222, 0.9: 0.7777}),
        release(histogram=Histogram((0.0, 1.0, 2.0), (61.0, 39.0)), quantiles={0.5: 0.5555}),
        release(groups=(row(), row("b", math.nan)), correlation=math.nan),
        release(correlation=0.9123, private=False),
    ]
    text = released.part(answers, PLAN, private=True)
    assert "no guarantee" in text
    assert "together cost everybody epsilon 0.4 " in text
    assert text.count("cost everybody epsilon 0.1 at delta 1e-05") == 4
    for figure in ("0.6543", "0.2222", "0.7777", "0.5555", "0.8125", "0.4321", "1.234", "0.9123", "61", "lost in the noise"):
        assert figure in text, figure
    assert text.count("made with a seed") == 1
    assert text.count("<svg") == text.count("</svg>") == 4


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "$x^{2", r"$\frac$", "<!--end of released-->", "a & b", "名前", "long " * 40]
)
def test_names_of_categories_are_text_and_nothing_else(name):
    text = released.part([release(groups=(row(name), row([name, "b"])))], PLAN, private=True)
    assert "<script" not in text
    assert escape(name) in text
    html = page.page("t", text)
    assert page.refilled(html, released.SLOT, text) == html
    assert page.refilled(html, released.SLOT, released.part((), PLAN, private=True)) is not None


def test_many_groups_are_a_table():
    text = released.part([release(groups=tuple(row(f"k{i}") for i in range(31)))], PLAN, private=True)
    assert "<svg" not in text
    assert text.count("<tr>") == 32


def test_groups_that_look_alike_are_each_drawn():
    few = {"epsilon": [1.0, 5.0], "delta": 1e-5, "holders": 12, "account": 0.5, "accuracy": 0.25, "loss": 1.0}
    other = {**few, "delta": 1e-6, "accuracy": 0.75}
    text = groups.figures(release(groups=(few, other)))[0]
    assert "epsilon 1 to 5 (1)" in text
    assert "epsilon 1 to 5 (2)" in text


def test_a_page_without_a_slot_or_with_two_is_not_touched():
    slot = released.part((), PLAN, private=True)
    for html in ("", "<p>mine</p>", slot + slot, "<!--end of released--><!--released-->", "<!--released-->"):
        assert page.refilled(html, released.SLOT, slot) is None


def test_the_page_of_a_run_is_brought_up_to_its_reserve(finished):
    path = finished.path / "report.html"
    path.chmod(0o640)
    answers = [Reserve(finished.reserve, PLAN).release(FIGURES, Request(), epsilon=epsilon) for epsilon in (0.1, 0.2)]
    finished.tell_released(PLAN)
    text = path.read_text()
    assert text.index("before") < text.index("no guarantee") < text.index("after")
    for answer in answers:
        assert f"<td>{answer.mean:.4g}</td>" in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "lock" not in os.listdir(finished.path)
    finished.tell_released(PLAN)
    assert path.read_text().count("Release 2 ") == 1


def test_it_is_rewritten_by_one_process_at_a_time(finished, monkeypatch):
    right, tried = released.part, []

    def part(*given, **more):
        with pytest.raises(SartorError, match="taken"):
            lock(finished.path, taken="taken")
        tried.append(given)
        return right(*given, **more)

    monkeypatch.setattr(released, "part", part)
    finished.tell_released(PLAN)
    assert len(tried) == 1
    lock(finished.path, taken="taken").close()


@pytest.mark.parametrize("how", ["gone", "link", "mine", "bytes"])
def test_what_is_no_page_of_ours_stays_as_it_is(finished, tmp_path, how):
    path, other = finished.path / "report.html", tmp_path / "other.html"
    kept = path.read_bytes()
    path.unlink()
    if how == "link":
        other.write_bytes(kept)
        path.symlink_to(other)
    elif how != "gone":
        path.write_bytes(b"<p>mine</p>" if how == "mine" else b"\xff\xfe")
    Reserve(finished.reserve, PLAN).release(FIGURES, Request(), epsilon=0.1)
    with pytest.raises(SartorError) as refused:
        finished.tell_released(PLAN)
    assert "\n" not in str(refused.value)
    assert path.exists() == (how != "gone")
    if how == "link":
        assert other.read_bytes() == kept
    assert sorted(name for name in os.listdir(finished.path) if name.startswith(".") or name == "lock") == []


def test_a_failure_while_writing_leaves_the_old_page(finished, monkeypatch):
    kept = (finished.path / "report.html").read_bytes()
    Reserve(finished.reserve, PLAN).release(FIGURES, Request(), epsilon=0.1)

    def broken(*_):
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", broken)
        with pytest.raises(SartorError, match="space"):
            finished.tell_released(PLAN)
    assert (finished.path / "report.html").read_bytes() == kept
    finished.tell_released(PLAN)
    assert b"Release 1 " in (finished.path / "report.html").read_bytes()


def test_what_is_drawn_without_noise_says_that_it_is_sensitive():
    found = Fare("kind", (row(), row("b", math.nan)), 0.5)
    for column in ("accuracy", "account", "loss"):
        assert "sensitive" in groups.drawn(found, column)
    with pytest.raises(SartorError, match="without noise"):
        groups.drawn(release(groups=(row(),)))
    with pytest.raises(SartorError, match="one of"):
        groups.drawn(found, "age")
