"""Saved results: as one Markdown page, as a picture, joined, and judged; and their commands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.ceilings import AnyCeilings, Ceilings, GpuCeilings
from bench.record import Record, Row, join, load, write
from bench.table import table
from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES

HEADER = """# {title}

Each record has its machine, date and command, without folders of temporary files. Times are wall-
clock medians, or times by the GPU's clock for layers of a GPU. `floor` is the least time that the
declared operations and bytes take at the measured ceilings. `achieved` is its share of the measured
time. Errors are relative to float64. Commands and predicted times are those of the revision that
was measured; `bench/README.md` has the names of today's commands.
"""

TEMPORARY_FOLDERS = re.compile(r"/tmp/(?:[\w.-]+/)*")
BEST = 3  # primitives that a picture shows
DOTS_PER_INCH = 150
DISTINCT = 20  # colours of matplotlib's largest palette of distinct ones

# Rows of a layer are those with the same values of these.
LAYER = ("kernel", "pool", "maps", "batch", "input", "threads")

Results = Annotated[list[Path], typer.Argument(help="Saved JSON files.")]


def table_command(
    results: Results,
    choices: Annotated[
        bool,
        typer.Option("--choices", help="Tell whether the model picks the fastest primitive."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Save the results as one JSON here.")
    ] = None,
) -> None:
    """Print saved results of one kind as a table.

    Several files are joined, in order. ``--out`` saves them as one.
    """
    records = [load(path, "layer" if choices else None) for path in results]
    rows = [row for record in records for row in record.rows]
    if choices:
        typer.echo(table("choices", judge_choices(rows)))
        return
    for record in records:
        if record.kind != records[0].kind:
            raise InvalidInput(
                f"results of {record.kind} and of {records[0].kind} make no table together"
            )
    if out:
        write(out, join(records))
    typer.echo(table(records[0].kind, rows))


def report_command(results: Results) -> None:
    """Print saved results as a Markdown page."""
    typer.echo(report({path.name: load(path) for path in results}), nl=False)


def plot_command(
    results: Results,
    out: Annotated[Path, typer.Option(help="The picture, such as layers.png.")],
) -> None:
    """Draw layers, networks (CPU) or scaling."""
    plot([load(path) for path in results], out)
    typer.echo(f"wrote {out}")


def report(records: Mapping[str, Record], title: str = "Results") -> str:
    """Return a page with a section for each file: machine, date, command, ceilings and table.

    Args:
        records: by the name of their file.
        title: of the page.
    """
    return "\n".join(
        [HEADER.format(title=title), *(_section(name, record) for name, record in records.items())]
    )


def _section(file: str, record: Record) -> str:
    machine, libraries = record.about["machine"], record.about["libraries"]
    versions = ", ".join(f"{name} {version}" for name, version in libraries.items() if version)
    revision = record.about.get("revision")
    lines = [
        f"## {file}\n",
        f"{machine['processor']}, {machine['threads']} threads, {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}; {record.about['date']}; {versions}"
        f"{f'; revision {revision}' if revision else ''}.\n",
        f"```\n{TEMPORARY_FOLDERS.sub('', record.about['command'])}\n```\n",
        *(f"- {_limits(measured)}" for measured in record.about["ceilings"]),
        f"\n{table(record.kind, record.rows)}\n",
    ]
    return "\n".join(lines)


def _limits(measured: Mapping[str, Any]) -> AnyCeilings:
    """Return a record's ceilings, of a CPU's threads or of a GPU."""
    return GpuCeilings(**measured) if "device" in measured else Ceilings(**measured)


def judge_choices(rows: list[Row]) -> list[Row]:
    """Return the choice and the fastest for each layer that was measured."""
    by_layer = groupby(rows, key=lambda row: [row[name] for name in LAYER])
    return [judge_choice(list(found)) for _, found in by_layer]


def judge_choice(rows: list[Row]) -> Row:
    """Return the primitive with the least predicted time beside the one with the least measured.

    ``regret`` is the time lost by the choice, as a share of the fastest one's time.

    Args:
        rows: a layer's, as ``compare_layer`` makes them. Peers and primitives beyond float32's
            class are left out.
    """
    about = {name: rows[0][name] for name in LAYER}
    ran = [row for row in rows if row.get("accuracy", 1) <= ACCURACIES["float32"]]
    if not ran:
        return {**about, "skipped": "no primitive ran"}
    picked = min(ran, key=lambda row: float(row["model_seconds"]))
    fastest = min(ran, key=lambda row: float(row["seconds"]))
    return {
        **about,
        "picked": picked["name"],
        "picked_seconds": picked["seconds"],
        "predicted_seconds": picked["model_seconds"],
        "fastest": fastest["name"],
        "fastest_seconds": fastest["seconds"],
        "fastest_predicted_seconds": fastest["model_seconds"],
        "regret": picked["seconds"] / fastest["seconds"] - 1,
        "of": len(ran),
    }


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
    """Say where, when and with how many threads; rows without a number took all threads."""
    machine = record.about["machine"]
    counts = {row["threads"] for row in record.rows if "threads" in row} or {machine["threads"]}
    threads = ", ".join(map(str, sorted(counts)))
    return f"{machine['processor']}, {threads} threads, {record.about['date']}"


def colours_of(names: Iterable[str]) -> dict[str, Any]:
    """Return a colour for each name, no two alike."""
    from matplotlib import colormaps

    different = list(dict.fromkeys(names))
    if len(different) <= DISTINCT:
        return {name: colormaps["tab20"](index) for index, name in enumerate(different)}
    return {
        name: colormaps["turbo"](index / len(different)) for index, name in enumerate(different)
    }


def _layers(figure: Any, rows: list[Row]) -> None:
    """Draw speed by kernel: a panel for each input, with the best primitives and the peers."""
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
    """Return the names of the fastest primitives in float32, and of all peers."""
    float32 = (r for r in rows if not _is_peer(r["name"]) and "bfloat16" not in r["name"])
    ours = sorted(float32, key=lambda row: -row["voxels_per_s"])
    return [row["name"] for row in ours[:BEST]] + [
        row["name"] for row in rows if _is_peer(row["name"])
    ]


def _is_peer(name: str) -> bool:
    return name.startswith(("torch", "dilated", "monai"))


def _networks(figure: Any, rows: list[Row]) -> None:
    """Draw bars for measurements, and lines for figures published on other hardware."""
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
    """Draw the speed-up by threads, beside the ideal."""
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
