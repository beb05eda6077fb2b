"""Results as a picture; needs the optional extra ``peers`` for matplotlib."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.record import Record, Row
from znni.core.errors import InvalidInput

BEST = 3  # primitives a figure shows
DOTS_PER_INCH = 150
DISTINCT = 20  # colours of matplotlib's largest palette of distinct ones


def plot(records: Sequence[Record], out: Path) -> None:
    """Draw layers, networks or scaling to a file of any type that matplotlib knows.

    Args:
        records: of one kind, drawn as if they were one.
        out: the picture.

    Raises:
        InvalidInput: matplotlib is missing, the records are of several kinds, or there is no
            picture of such results.
    """
    kinds = sorted({record.kind for record in records})
    if len(kinds) != 1:
        raise InvalidInput(f"results of {' and '.join(kinds)} make no picture together")
    draw = {"layer": _layers, "network": _networks, "scaling": _scaling}.get(kinds[0])
    rows = [row for record in records for row in record.rows if row.get("voxels_per_s")]
    if draw is None or not rows:
        raise InvalidInput(
            f"{len(rows)} results of {kinds[0]} make no picture; "
            f"plot those of layer, network or scaling"
        )
    if find_spec("matplotlib") is None:
        raise InvalidInput("matplotlib is not installed: pip install -e '.[peers]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    draw(figure, rows)
    caption = "; ".join(dict.fromkeys(map(_caption, records)))
    figure.supxlabel(caption, fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=DOTS_PER_INCH)


def _caption(record: Record) -> str:
    """Where, when and with how many threads; rows that do not say so took all of the machine's."""
    machine = record.about["machine"]
    counts = {row["threads"] for row in record.rows if "threads" in row} or {machine["threads"]}
    threads = ", ".join(map(str, sorted(counts)))
    return f"{machine['processor']}, {threads} threads, {record.about['date']}"


def colours_of(names: Iterable[str]) -> dict[str, Any]:
    """One for each name, no two alike."""
    from matplotlib import colormaps

    different = list(dict.fromkeys(names))
    if len(different) <= DISTINCT:
        return {name: colormaps["tab20"](index) for index, name in enumerate(different)}
    return {
        name: colormaps["turbo"](index / len(different)) for index, name in enumerate(different)
    }


def _layers(figure: Any, rows: list[Row]) -> None:
    """Speed by kernel: a panel for each input; the best primitives of each kernel, and peers."""
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    panels = figure.subplots(1, len(inputs), sharey=True, squeeze=False)[0]
    kernels_of: dict[str, dict[str, list[Row]]] = {shape: defaultdict(list) for shape in inputs}
    for row in rows:
        kernels_of[row["input"]][row["kernel"]].append(row)
    shown = {
        shape: sorted({name for found in kernels.values() for name in _best(found)})
        for shape, kernels in kernels_of.items()
    }
    colours = colours_of(name for names in shown.values() for name in names)
    for panel, (shape, kernels) in zip(panels, kernels_of.items(), strict=True):
        for name in shown[shape]:
            points = [
                (kernel, row["voxels_per_s"])
                for kernel, found in kernels.items()
                for row in found
                if row["name"] == name
            ]
            style = "--" if _is_peer(name) else "-"
            look = {"marker": "o", "color": colours[name], "label": name}
            panel.plot(*zip(*points, strict=True), style, **look)
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
    colours = colours_of(row["name"] for row in (*measured, *published))
    axes = figure.subplots()
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        found = [row for row in measured if row["name"] == name]
        places = [networks.index(row["network"]) + (index + 0.5) * width - 0.4 for row in found]
        look = {"color": colours[name], "label": name}
        bars = axes.bar(places, [row["voxels_per_s"] for row in found], width, **look)
        axes.bar_label(bars, [f"{row['voxels_per_s'] / 1e3:,.0f}k" for row in found], fontsize=6)
    for name in dict.fromkeys(row["name"] for row in published):
        found = [row for row in published if row["name"] == name]
        places = [networks.index(row["network"]) for row in found]
        axes.hlines(
            [row["voxels_per_s"] for row in found],
            [place - 0.42 for place in places],
            [place + 0.42 for place in places],
            color=colours[name],
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
    colours = colours_of(f"{work} {name}" for work, name in lines)
    for (work, name), points in lines.items():
        style = "--" if _is_peer(name) else "-"
        label = f"{work} {name}"
        look = {"marker": "o", "color": colours[label], "label": label}
        axes.plot(*zip(*points, strict=True), style, **look)
    threads = sorted({row["threads"] for row in rows})
    axes.plot(threads, [t / threads[0] for t in threads], color="0.7", label="ideal")
    axes.set(xlabel="threads", ylabel="speed-up", xticks=threads)
    figure.legend(loc="outside upper center", fontsize="x-small", ncols=3)
