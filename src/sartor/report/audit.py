"""The page of an audit: what was promised and what was found, and how well members of each group can be told from others."""

from __future__ import annotations

import numpy as np

from sartor.audit.findings import Findings
from sartor.confidential import text
from sartor.report import page, plots

_RATES = (1e-3, 1e-2, 0.1, 0.5)
_SENSITIVE = "Sensitive: these figures are about the training records themselves, and no budget covers them. Show them to nobody."


def audit_page(found: Findings, *, title: str) -> str:
    """The page, as HTML; it says where what was found is sensitive."""
    table = found.table()
    names = [f"epsilon {text(row.epsilon, 'g')}" for row in found.rows]
    curves = [
        plots.Line(name, np.maximum(row.curve.fpr, 1e-5), np.maximum(row.curve.tpr, 1e-5))
        for name, row in zip(names, found.rows, strict=True)
    ]
    numbers = page.table(
        ["false positive rate", *names],
        [[f"{rate:g}", *(f"{np.interp(rate, row.curve.fpr, row.curve.tpr):.4f}" for row in found.rows)] for rate in _RATES],
    )
    caption = "Share of members found (true positive rate) over the share of others taken for members (false positive rate), by group"
    drawing = plots.lines(curves, x="false positive rate", y="true positive rate", logarithmic=True, logarithmic_x=True)
    blocks = [page.paragraph(found.sentence()), page.table(table.headings, table.rows), page.figure(drawing, caption, numbers)]
    if found.sensitive:
        blocks.insert(0, page.note(_SENSITIVE))
    return page.page(title, *blocks)
