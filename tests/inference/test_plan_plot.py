"""Tests of a plan's figure: the content of its axes, and the files that it is drawn to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import refused, succeeds
from small_search import CATALOGUE, small_search

from planner.sensitivity import Views, steps, views
from znni.core.errors import InvalidInput
from znni.inference.plan_plot import check_drawable, figure, plot_plan
from znni.primitives.catalogue import families

FIRST_BYTES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
PLAN = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture(scope="module")
def around() -> Views:
    search = small_search()
    return views(search, search.fastest()[0], families(CATALOGUE))


@needs_matplotlib
def test_the_axes_show_the_views(around: Views) -> None:
    drawn = figure(around)
    by_memory, by_patch, times, memory = drawn.axes
    for axes in drawn.axes:
        assert axes.get_title()
        assert axes.get_xlabel()
    assert by_memory.get_ylabel() == by_patch.get_ylabel() == "output voxels per second"
    (line,) = by_memory.get_lines()
    assert list(line.get_ydata()) == [plan.voxels_per_second for plan in around.by_memory]
    labels = [text.get_text() for text in by_patch.get_legend().get_texts()]
    assert labels == ["any", "tiled FFT", "lowered to matrix products", "direct", "the plan"]
    shown = list(steps(around.plan))
    bars = [bar.get_width() for bar in times.patches]
    assert bars == [view.seconds for view in shown]
    held = [bar.get_x() + bar.get_width() for bar in memory.patches]
    assert held[len(shown) :] == pytest.approx([view.memory / 2**30 for view in shown])
    memory_beside = around.plan.memory.total - around.plan.memory.working
    assert set(held[: len(shown)]) == {memory_beside / 2**30}
    names = [text.get_text() for text in times.get_yticklabels()]
    assert names == [f"{view.step.operation.name}\n{view.step.primitive}" for view in shown]
    assert str(around.plan.patch) in drawn.get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize("ending", FIRST_BYTES)
@needs_matplotlib
def test_the_same_views_give_the_same_file(ending: str, around: Views, tmp_path: Path) -> None:
    out = tmp_path / f"plan{ending}"
    plot_plan(around, out)
    first = out.read_bytes()
    assert first.startswith(FIRST_BYTES[ending])
    plot_plan(around, out)
    assert out.read_bytes() == first


@pytest.mark.slow
@needs_matplotlib
def test_where_nothing_can_be_written(around: Views, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none/plan.png: cannot be written: No such file"):
        plot_plan(around, tmp_path / "none" / "plan.png")


def test_what_cannot_be_drawn_is_said_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"plan.gif: .* ends in one of .png, .svg, .pdf"):
        check_drawable(Path("plan.gif"))
    monkeypatch.setattr("znni.inference.plan_plot.find_spec", lambda _name: None)
    with pytest.raises(InvalidInput, match=r"not installed: pip install 'znni\[plot\]'"):
        check_drawable(Path("plan.png"))
    assert "znni[plot]" in refused(*PLAN, "--plot", "plan.png")


@pytest.mark.slow
@needs_matplotlib
@pytest.mark.usefixtures("fake_primitives")
def test_the_command_draws(small_case: Path) -> None:
    assert "conv1" in succeeds(*PLAN, "--plot", "plan.png")
    assert (small_case / "plan.png").read_bytes().startswith(FIRST_BYTES[".png"])
