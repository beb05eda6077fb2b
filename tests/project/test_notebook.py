"""The example notebook runs, and what it shows is HTML. No Jupyter is needed."""

from __future__ import annotations

import ast
import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from paths import EXAMPLES, ROOT

import znni

EMPTY = {"img", "br", "input", "link", "meta", "hr"}


class Balanced(HTMLParser):
    """Checks that all tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        self.seen.append(tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(text: str) -> list[str]:
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    return parser.seen


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell, and return the value of its last line if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def test_the_notebook_runs(own_folder: Path) -> None:
    with h5py.File(ROOT / "networks" / "cells.h5") as file, h5py.File("volume.h5", "w") as small:
        small["raw"] = file["raw"][:48, :64, :64]
    shutil.copy(EXAMPLES / "notebook.ipynb", own_folder)
    cells = json.loads(Path("notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    shown = [run_cell("".join(c["source"]), names) for c in cells if c["cell_type"] == "code"]
    volume, network, plan, report, page, exported = shown
    assert tags(volume._repr_html_())[-1] == "img"
    assert "1 x 48x64x64, uint8" in repr(volume)
    assert tags(network._repr_html_()).count("tr") == 1 + len(network.nodes)
    assert "expects grey levels" in network._repr_html_()
    assert tags(plan._repr_html_()).count("div") == sum(len(s.steps) for s in plan.segments)
    assert "host layers" in report._repr_html_()
    assert tags(report._repr_html_()).count("table") == 2
    assert tags(page._repr_html_()) == ["iframe"]
    assert "<script" not in page._repr_html_()  # all of the page is in the attribute, escaped
    assert str(page).startswith("napari:")
    assert str(exported) == "seen.npy: 1 map of 48x64x64, float32"


def test_names_in_files_cannot_add_tags(own_folder: Path) -> None:
    assert own_folder
    np.save("<b>v.npy", np.zeros((3, 4, 5), np.float32))
    assert "b" not in tags(znni.open_volume("<b>v.npy")._repr_html_())


def test_a_constant_or_partly_unusable_plane_is_shown() -> None:
    values = np.full((3, 40, 50), np.nan, np.float32)
    assert tags(znni.open_volume(values)._repr_html_())[-1] == "img"


@pytest.mark.parametrize("extents", [(1, 3000, 5), (9, 2, 2000)])
def test_large_planes_are_read_in_part(extents: tuple[int, int, int]) -> None:
    assert "img" in tags(znni.open_volume(np.zeros(extents, np.uint8))._repr_html_())
