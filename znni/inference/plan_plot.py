"""Figure of a plan and its alternatives; needs matplotlib, the optional extra ``plot``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.sensitivity import ANY, Views, edge, steps
from znni.core.errors import InvalidInput
from znni.core.text import counted, in_units
from znni.machine.machine import Device
from znni.plans.segments import Step

# Metadata of a figure by file type. Dates are left out, so that the same plan gives the same file.
METADATA: dict[str, dict[str, None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
STYLE: Any = {
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "svg.hashsalt": "znni",
}
INCHES = (12, 9)
DOTS_PER_INCH = 120
GIB = 2**30


def check_drawable(out: Path) -> None:
    """Check that a figure can be drawn to a file, before computing its content takes time.

    Raises:
        InvalidInput: matplotlib is missing, or the file type is not supported.
    """
    if out.suffix not in METADATA:
        known = ", ".join(METADATA)
        raise InvalidInput(f"{out}: cannot be drawn; give a name that ends in one of {known}")
    if find_spec("matplotlib") is None:
        raise InvalidInput(
            "matplotlib, which draws the figure, is not installed: pip install 'znni[plot]'"
        )


def plot_plan(views: Views, out: Path) -> None:
    """Draw a figure of throughput by memory and patch size, and of the cost of each layer.

    Args:
        views: the plan's alternatives to draw.
        out: the file to write, which ``check_drawable`` has accepted; its ending is the file type.

    Raises:
        InvalidInput: the file cannot be written.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        picture = figure(views)
        try:
            picture.savefig(out, dpi=DOTS_PER_INCH, metadata=METADATA[out.suffix])
        except OSError as error:
            raise InvalidInput(
                f"{out}: cannot be written: {error.strerror}; write elsewhere"
            ) from None


def figure(views: Views) -> Any:
    """Return a figure of four axes: throughput by memory and patch, time and memory by layer."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=INCHES, layout="constrained")
    (by_memory, by_patch), (times, memory) = drawn.subplots(2, 2)
    _throughput_by_memory(by_memory, views)
    _throughput_by_patch(by_patch, views)
    _layers(times, memory, views)
    drawn.suptitle(_title(views))
    return drawn


def _title(views: Views) -> str:
    plan = views.plan
    devices = "; ".join(_limit(device) for _, device in plan.limits.values())
    return (
        f"{plan.network.name} over {plan.output}: {plan.voxels_per_second:,.0f} ± {plan.error:.0%} "
        f"voxels/s in patches of {plan.patch}\n{devices}; predicted times: {plan.costs}"
    )


def _limit(device: Device) -> str:
    threads = f"{counted(device.threads, 'thread')}, " * (not device.has_own_memory)
    return f"{device.name}, {threads}{in_units(device.memory)} allowed"


def _throughput_by_memory(axes: Any, views: Views) -> None:
    """Draw throughput over the memory limit, and label each new patch size."""
    plans = views.by_memory
    limits = [plan.last_device.memory / GIB for plan in plans]
    axes.plot(limits, [plan.voxels_per_second for plan in plans], marker="o", clip_on=False)
    first = {plan.patch: plan for plan in reversed(plans)}
    for patch, plan in first.items():
        axes.annotate(
            str(patch),
            (plan.last_device.memory / GIB, plan.voxels_per_second),
            xytext=(-6, 1),
            textcoords="offset points",
            horizontalalignment="right",
            fontsize="x-small",
        )
    axes.set(
        title="Throughput by the memory allowed",
        xlabel="memory allowed (GiB), in patches that are cubes or nearly so",
        ylabel="output voxels per second",
        xscale="log",
    )
    axes.margins(x=0.1)
    axes.set_xticks(limits, [f"{limit:.3g}" for limit in limits])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _throughput_by_patch(axes: Any, views: Views) -> None:
    """Draw throughput over the cube's edge for each family; a ring marks the plan."""
    for name, plans in views.by_patch.items():
        edges = [edge(plan.patch) for plan in plans]
        # This wider line lies behind the line of the family that it equals.
        wide = {"linewidth": 6, "alpha": 0.4, "color": "0.5"} if name == ANY else {"marker": "."}
        axes.plot(edges, [plan.voxels_per_second for plan in plans], label=name, **wide)
    plan = views.plan
    ring = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": ""}
    axes.plot(edge(plan.patch), plan.voxels_per_second, color="black", label="the plan", **ring)
    axes.set(
        title="Throughput by the size of cubic patches",
        xlabel="edge of a cube as large as the patch (output voxels)",
        ylabel="output voxels per second",
        yscale="log",
    )
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(title="primitives")


def _layers(times: Any, memory: Any, views: Views) -> None:
    """Draw bars for every step, with the first one on top."""
    shown = list(steps(views.plan))
    places = range(len(shown))
    seconds = [view.seconds for view in shown]
    errors = [view.seconds * view.step.error for view in shown]
    times.barh(places, seconds, xerr=errors, ecolor="0.4")
    times.set(title="Time of the layers", xlabel="seconds for a patch, with the error expected")
    times.set_yticks(places, [_label(view.step) for view in shown])
    times.invert_yaxis()
    memory.sharey(times)
    throughout = [view.throughout / GIB for view in shown]
    own = [(view.memory - view.throughout) / GIB for view in shown]
    memory.barh(places, throughout, color="0.7", label="throughout")
    memory.barh(places, own, left=throughout, color="C1", label="arrays and workspace")
    limit = views.plan.last_device.memory / GIB
    memory.axvline(limit, color="black", linestyle="--", label="allowed")
    memory.set(title="Memory at each layer", xlabel="GiB that the run holds at most")
    memory.tick_params(labelleft=False)
    memory.figure.legend(*memory.get_legend_handles_labels(), loc="outside lower right", ncols=3)
    for axes in (times, memory):
        axes.grid(visible=False, axis="y")


def _label(step: Step) -> str:
    return f"{step.operation.name}\n{step.primitive}"
