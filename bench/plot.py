"""Results as a picture; needs the optional extra ``peers`` for matplotlib."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.record import Record, Row
from znni.errors import InvalidInput

BEST = 3  # primitives a figure shows
DOTS_PER_INCH = 150


def plot(record: Record, out: Path) -> None:
    """Draw layers, networks or scaling to a file of any type that matplotlib knows.

    Raises:
        InvalidInput: matplotlib is missing, or there is no picture of such results.
    """
    draw = {"layer": _layers, "network": _networks, "scaling": _scaling}.get(record.kind)
    rows = [row for row in record.rows if row.get("voxels_per_s")]
    if draw is None or not rows:
        raise InvalidInput(
            f"{len(rows)} results of {record.kind} make no picture; "
            f"plot those of layer, network or scaling"
        )
    if find_spec("matplotlib") is None:
        raise InvalidInput("matplotlib is not installed: pip install -e '.[peers]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    draw(figure, rows)
    processor, date = record.about["machine"]["processor"], record.about["date"]
    figure.supxlabel(f"{processor}, {_threads(record)} threads, {date}", fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=DOTS_PER_INCH)


def _threads(record: Record) -> str:
    """How many were measured with; rows that do not say so took all of the machine's."""
    counts = {row["threads"] for row in record.rows if "threads" in row}
    return ", ".join(map(str, sorted(counts or {record.about["machine"]["threads"]})))


def _layers(figure: Any, rows: list[Row]) -> None:
    """Speed by kernel: a panel for each input; the best primitives of each kernel, and peers."""
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    panels = figure.subplots(1, len(inputs), sharey=True, squeeze=False)[0]
    for panel, shape in zip(panels, inputs, strict=True):
        kernels: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["input"] == shape:
                kernels[row["kernel"]].append(row)
        shown = {name for found in kernels.values() for name in _best(found)}
        for name in sorted(shown):
            points = [
                (kernel, row["voxels_per_s"])
                for kernel, found in kernels.items()
                for row in found
                if row["name"] == name
            ]
            style = "--" if _is_peer(name) else "-"
            panel.plot(*zip(*points, strict=True), style, marker="o", label=name)
        panel.set(yscale="log", xlabel="kernel", title=shape)
        panel.legend(fontsize="x-small")
    panels[0].set_ylabel("output voxels per second")


def _best(rows: list[Row]) -> list[str]:
    """The names of the fastest primitives in float32, and of all peers."""
    float32 = (r for r in rows if not _is_peer(r["name"]) and "bfloat16" not in r["name"])
    ours = sorted(float32, key=lambda row: -row["voxels_per_s"])
    return [row["name"] for row in ours[:BEST]] + [
        row["name"] for row in rows if _is_peer(row["name"])
    ]


def _is_peer(name: str) -> bool:
    return name.startswith(("torch", "dilated", "monai"))


def _networks(figure: Any, rows: list[Row]) -> None:
    """Bars for those measured here, lines across for what was published on other hardware."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    published = [row for row in rows if str(row.get("measured")).startswith("published")]
    measured = [row for row in rows if row not in published]
    names = list(dict.fromkeys(row["name"] for row in measured))
    axes = figure.subplots()
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        found = [row for row in measured if row["name"] == name]
        places = [networks.index(row["network"]) + (index + 0.5) * width - 0.4 for row in found]
        bars = axes.bar(places, [row["voxels_per_s"] for row in found], width, label=name)
        axes.bar_label(bars, [f"{row['voxels_per_s'] / 1e3:,.0f}k" for row in found], fontsize=6)
    for index, name in enumerate(dict.fromkeys(row["name"] for row in published)):
        found = [row for row in published if row["name"] == name]
        places = [networks.index(row["network"]) for row in found]
        axes.hlines(
            [row["voxels_per_s"] for row in found],
            [place - 0.42 for place in places],
            [place + 0.42 for place in places],
            color=f"C{(index + len(names)) % 10}",
            linestyle=":",
            label=f"{name} (published, other hardware)",
        )
    axes.set(yscale="log", ylabel="output voxels per second")
    axes.set_xticks(range(len(networks)), networks)
    figure.legend(loc="outside upper center", fontsize="x-small", ncols=3)


def _scaling(figure: Any, rows: list[Row]) -> None:
    """Speed-up by threads, beside the ideal."""
    axes = figure.subplots()
    lines: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: int(row["threads"])):
        lines[row["work"], row["name"]].append((row["threads"], row["speedup"]))
    for (work, name), points in lines.items():
        style = "--" if _is_peer(name) else "-"
        axes.plot(*zip(*points, strict=True), style, marker="o", label=f"{work} {name}")
    threads = sorted({row["threads"] for row in rows})
    axes.plot(threads, [t / threads[0] for t in threads], color="0.7", label="ideal")
    axes.set(xlabel="threads", ylabel="speed-up", xticks=threads)
    figure.legend(loc="outside upper center", fontsize="x-small", ncols=3)
