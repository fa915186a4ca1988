"""HTML pages that stand alone: blocks of text, tables and figures; every text is escaped on the way in.

The style follows the reader's light or dark setting, and wide tables scroll by themselves on a small screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NewType

Block = NewType("Block", str)
"""A piece of HTML that was made here, and so is escaped."""

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --paper: #ffffff; --line: #ccd2dc; --quiet: #5a6474; --warn: #fff1d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --paper: #14181f; --line: #394150; --quiet: #a2abba; --warn: #4a3a12; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1.2rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
figure { margin: 1rem 0; } figcaption, details, footer { color: var(--quiet); font-size: .9rem; }
svg { width: 100%; height: auto; color: var(--ink); } summary { cursor: pointer; }
.note { background: var(--warn); padding: .7rem 1rem; border-radius: .4rem; }
"""


def paragraph(text: str) -> Block:
    """A paragraph."""
    return Block(f"<p>{escape(text)}</p>")


def note(text: str) -> Block:
    """A paragraph that must not be overlooked."""
    return Block(f'<p class="note" role="note">{escape(text)}</p>')


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """A table with a heading for each column."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return Block(f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def figure(svg: str, caption: str, numbers: Block) -> Block:
    """A drawing that was made by `sartor.report.plots`, what it shows in words, and its numbers as a table for those who cannot see it."""
    return Block(
        f'<figure><div role="img" aria-label="{escape(caption)}">{svg}</div><figcaption>{escape(caption)}</figcaption>'
        f"<details><summary>The numbers</summary>{numbers}</details></figure>"
    )


def section(heading: str, *blocks: Block) -> Block:
    """Blocks under a heading."""
    return Block(f"<section><h2>{escape(heading)}</h2>{''.join(blocks)}</section>")


def slot(name: str, block: Block) -> Block:
    """A block that can be exchanged later (`refilled`). Names are ours, and no text that is escaped can look like its ends."""
    begin, end = _ends(name)
    return Block(f"{begin}{block}{end}")


def refilled(html: str, name: str, block: Block) -> str | None:
    """A page with another block in the place of a slot, all else as it was; None where it has no such slot, or is broken."""
    begin, end = _ends(name)
    if html.count(begin) != 1 or html.count(end) != 1 or html.index(begin) > html.index(end):
        return None
    return html[: html.index(begin)] + block + html[html.index(end) + len(end) :]


def _ends(name: str) -> tuple[str, str]:
    return f"<!--{name}-->", f"<!--end of {name}-->"


def page(title: str, *blocks: Block) -> str:
    """A whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>\n" + "\n".join(blocks) + "\n</main><footer>Written by Sartor.</footer></body></html>\n"
    )
