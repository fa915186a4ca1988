"""The page of an audit: what was promised and what was found, and how well members of each group can be told from others."""

from __future__ import annotations

import numpy as np

from sartor.audit.findings import Findings
from sartor.audit.sensitive import NOTE
from sartor.confidential import text
from sartor.report import page, plots

_RATES = (1e-3, 1e-2, 0.1, 0.5)

_ABOUT = {
    "canary": "canaries: extra members with directions of their own, each in or out by a coin, told from all that was released (white box)",
    "lira": "LiRA: the likelihood of each record's log-odds under shadow models with it and without it, on the log scale",
    "rmia": "RMIA: how much better a model explains a record than it explains public ones, relative to shadow models",
    "loss": "the loss of each record alone: who has a small one took part",
}
_READ = (
    '"In, out" is how many scores there are of members and of others. The bound is what epsilon must at least be for this to be found, up '
    'to the stated confidence, which is that of the whole table; "at most" is what it would be if every score told right. AUC is how often '
    "a member scores higher than somebody else (0.5 is guessing), and TPR the share of members that are found where at most that share of "
    "the others is taken for members."
)


def audit_page(found: Findings, *, title: str, sensitive: bool = False) -> str:
    """The page, as HTML. Where what was found is `sensitive` it says so, and so must who asks for it."""
    table = found.table(sensitive=sensitive)
    names = _names(found)
    least = 1 / max(1, *(row.outside for row in found.rows))  # what the scores can tell from 0
    curves = [
        plots.Line(name, np.maximum(row.curve.fpr, least), np.maximum(row.curve.tpr, least))
        for name, row in zip(names, found.rows, strict=True)
    ]
    guessing = np.array([least, 1.0])
    numbers = page.table(
        ["false positive rate", *names],
        [[f"{rate:g}", *(f"{row.curve.tpr[row.curve.fpr <= rate][-1]:.4f}" for row in found.rows)] for rate in _RATES],
    )
    caption = "Share of members found (true positive rate) over the share of others taken for members (false positive rate), by group"
    drawn = [*curves, plots.Line("guessing", guessing, guessing)]
    drawing = plots.lines(drawn, x="false positive rate", y="true positive rate", logarithmic=True, logarithmic_x=True)
    about = f"The attack: {_ABOUT.get(found.attack, found.attack)}. Confidence {found.confidence:g}. {_READ}"
    blocks = [page.paragraph(found.sentence()), page.table(table.headings, table.rows), page.paragraph(about)]
    blocks.append(page.figure(drawing, caption, numbers))
    if found.sensitive:
        blocks.insert(0, page.note(NOTE))
    return page.page(title, *blocks)


def _names(found: Findings) -> list[str]:
    """What curves are called: by epsilon, and by delta where it takes that to tell them apart."""
    plain = [f"epsilon {text(row.epsilon, 'g')}" for row in found.rows]
    return [
        name if plain.count(name) == 1 else f"{name}, delta {text(row.delta, 'g')}" for name, row in zip(plain, found.rows, strict=True)
    ]
