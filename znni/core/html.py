"""Tables, bars and pictures as HTML, for notebooks."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from znni.core.png import png

WIDTH = 240  # pixels of the longest bar


def escape(text: str, *, quote: bool = True) -> str:
    """Return HTML that shows a text; ``quote`` says whether quotes are escaped, too."""
    import html  # which loads the names of all characters that HTML has, and few need them

    return html.escape(text, quote)


def table(rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table. Its first row is the header."""
    head, *body = rows
    caption = f"<caption>{escape(title)}</caption>" * bool(title)
    lines = [_row("th", head), *(_row("td", row) for row in body)]
    return f"<table>{caption}{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    style = ' style="text-align:left;white-space:pre"'
    return f"<tr>{''.join(f'<{tag}{style}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def bars(title: str, values: Sequence[tuple[str, float, str]]) -> str:
    """Return a plot with one bar for each value: its name, its length and its text."""
    longest = max((value for _, value, _ in values), default=0.0) or 1.0
    lines = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td><td style="text-align:left">'
        f'<div style="display:inline-block;height:0.8em;background:#4c72b0;'
        f'width:{WIDTH * value / longest:.0f}px"></div> {escape(text)}</td></tr>'
        for name, value, text in values
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def text(lines: str) -> str:
    """Return lines of text in which columns stay aligned."""
    return f"<pre>{escape(lines)}</pre>"


def grey_picture(values: NDArray[np.uint8], name: str) -> str:
    """Return a picture of shades of grey (rows, columns)."""
    address = f"data:image/png;base64,{b64encode(png(values)).decode()}"
    return f'<img alt="{escape(name)}" src="{address}">'


def page(content: str, height: int) -> str:
    """Return a whole page of HTML as a frame in another page."""
    return (
        f'<iframe srcdoc="{escape(content, quote=True)}" width="100%" height="{height}" '
        f'frameborder="0"></iframe>'
    )
