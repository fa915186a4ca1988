"""Pages stand alone, escape what they are given, and draw what may be drawn."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sartor
from sartor.report import page, plots
from sartor.report.curves import drawn, profile_figure, spend_figure
from sartor.report.training import training_page

VOID = {"meta", "br", "link"}


class Tree(HTMLParser):
    """Checks that every element is closed in its turn, and collects ids and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop() if tag not in VOID else None

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html):
    tree = Tree()
    tree.feed(html)
    tree.close()
    assert tree.open == []
    return tree


def plan_of(groups, scheme="scale", **options):
    budgets = sartor.Budgets.from_groups(groups, delta=1e-5)
    return sartor.plan(budgets, scheme, steps=50, batch=20, accountant="rdp", **options)


@example("<b>&amp;</b>")
@example('\' onload="x"')
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))))
def test_texts_come_out_as_they_went_in_and_never_as_markup(text):
    html = page.page(
        text,
        page.section(text, page.paragraph(text), page.note(text), page.table([text], [[text]])),
        page.figure("<svg></svg>", text, page.table([], [])),
    )
    tree = parsed(html)
    assert set(tree.tags) <= set(
        parsed(page.page("", page.section("", page.paragraph(""), page.note(""), page.table([""], [[""]])))).tags
    ) | {*("figure", "figcaption", "details", "summary", "svg")}
    assert "".join(tree.text).count(text) >= 7


def test_a_page_is_readable_on_phones_and_in_the_dark():
    html = page.page("t")
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html


@pytest.mark.parametrize("logarithmic", [False, True])
def test_plots_are_inline_without_addresses_and_with_ids_of_their_own(logarithmic):
    curves = [plots.Line("one", [1, 2, 3], [0.1, 0.2, 0.3]), plots.Line("<two>", [1, 2, 3], [0.1, 0.2, np.nan])]
    drawings = [plots.lines(some, x="steps", y="spent", logarithmic=logarithmic) for some in (curves, curves[:1])]
    assert plots.lines(curves, x="steps", y="spent", logarithmic=logarithmic) == drawings[0]
    drawings.append(plots.bars([plots.Bar("a", 0.9, 0.01), plots.Bar("b", 0.8, 0)], x="accuracy"))
    tree = parsed("".join(drawings))
    assert len(tree.ids) == len(set(tree.ids))
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', "".join(drawings)))
    assert used <= set(tree.ids)
    assert "http" not in "".join(drawings)
    text = "".join(tree.text)
    for words in ("steps", "spent", "one", "<two>", "90.0% ± 1.0%"):
        assert words in text
    assert "currentColor" in drawings[0]


def test_every_figure_has_its_numbers_as_a_table():
    plan = plan_of([(1, 100), (2, 100)])
    for block in (spend_figure(plan, 50), profile_figure(plan)):
        tree = parsed(block)
        assert 'role="img" aria-label="' in block
        assert {"table", "svg", "details"} <= set(tree.tags)
    assert f"{plan.spent[1]:.4f}" in spend_figure(plan, 50)


def test_small_groups_and_what_would_tell_their_budgets_are_not_drawn():
    assert drawn(plan_of([(0.7, 3), (1, 100), (2, 100)])) == [2]  # the small group joins its neighbour
    assert drawn(plan_of([(0.7, 3), (1, 100), (2, 100)], "uniform")) == []  # everybody's spend would be the small group's budget
    assert drawn(plan_of([(1, 5), (2, 9), (3, 9)])) == []
    assert drawn(plan_of([(1, 100), (np.inf, 50)])) == [0]
    assert "are not drawn" in spend_figure(plan_of([(0.7, 3), (1, 100), (2, 100)]), 50)


def test_many_groups_are_drawn_as_a_few_spread_over_the_budgets():
    chosen = drawn(plan_of([(1 + i / 10, 20) for i in range(30)]))
    assert (len(chosen), chosen[0], chosen[-1]) == (6, 0, 29)


def test_the_training_page_shows_plan_accuracy_spend_and_profile():
    plan = plan_of([(1, 100), (2, 100)])
    html = training_page(
        title="a & b",
        facts={"data": "<digits>"},
        plan=plan,
        steps=50,
        seeded=True,
        accuracy=0.913,
        history=[{"step": 25, "accuracy": 0.8, "loss": 1.0}, {"step": 50, "accuracy": 0.913, "loss": 0.5}],
        notes=["A note."],
    )
    tree = parsed(html)
    text = "".join(tree.text)
    for words in (
        "a & b",
        "<digits>",
        "91.3%",
        "A note.",
        "protects nobody",
        "noise multiplier",
        "epsilon spent",
        "accuracy on public rows",
    ):
        assert words in text
    assert tree.tags.count("svg") == 3


def test_a_run_without_test_rows_says_so_and_has_no_curve_of_accuracy():
    html = training_page(title="t", facts={}, plan=plan_of([(1, 100)]), steps=50, seeded=False, accuracy=None, history=[])
    assert "no accuracy is told" in html
    assert "protects nobody" not in html
    assert html.count("<svg") == 2
