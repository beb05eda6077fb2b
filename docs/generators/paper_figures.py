"""Tables that stand for figures of papers, such as curves and heat maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby

from performance_tables.parts import caption

from bench.paper.published import NETWORKS, published_primitive
from bench.record import Record, Row
from bench.table import markdown

Records = Mapping[str, Record]

REGIONS, SIZES = "paper-regions-h200.json", "paper-sizes-h200.json"
REGIONS_OF_A_CORE = "paper-regions-1-core.json"
STRATEGIES = "strategies-h200.json", "strategies-h200-alone.json"
WHOLE_JOBS = "strategies-whole-h200.json"
MACHINE_PLANS = "machine-plans.json"

# The GPU of Table IV, as records name it. Its primitives by the kind that a table says.
TITAN = "GeForce GTX Titan X"
KINDS = {
    "gpu_cudnn": "cuDNN",
    "gpu_fft_pruned": "pruned FFT",
    "gpu_max_pooling_fragments": "all fragments",
    "gpu_max_pooling": "one fragment at a time",
}


def regions(records: Records, name: str = REGIONS) -> str:
    """Return the fastest family for each layer size, with its gain, as a heat map."""
    first: dict[str, Row] = {}
    for row in records[name].rows:
        first.setdefault(str(row["case"]), row)  # the fastest come first
    outputs = sorted({row["output"] for row in first.values()})
    lines: dict[tuple[int, int], dict[str, str]] = {}
    for row in first.values():
        line = lines.setdefault(
            (row["kernel"], row["problem"]),
            {"kernel": f"{row['kernel']}³", "S f f'": f"{row['problem']:,}"}
            | {f"output {extent}³": "" for extent in outputs},
        )
        gain = f" {row['gain']:.1f}x" if row.get("gain") else ""
        family = row["family"].removesuffix(" to matrix products")
        line[f"output {row['output']}³"] = f"{_shade(row.get('gain'))} {family}{gain}"
    table = markdown([lines[key] for key in sorted(lines)])
    return f"{table}\n\n{caption(records, [name])}"


def host_ram(records: Records) -> str:
    """Return predictions of GPU + host RAM, with fixed and with chosen shares of the GPU.

    Measured speeds of plans with chosen shares are in brackets. Their record comes last.
    """
    fixed = [*STRATEGIES, "strategies-h200-together.json"]
    chosen = sorted(name for name in records if name.startswith("strategies-h200-host-ram"))
    lines: dict[str, dict[str, str]] = {}
    for title, names in {"fixed": fixed, "chosen": chosen}.items():
        for row in (row for name in names for row in records[name].rows):
            limit = row.get("gpu_limit_gib") or 0
            if row["strategy"] == "GPU + host RAM" and limit in (4, 12):
                line = lines.setdefault(row["network"], {"network": row["network"]})
                ran = row.get("voxels_per_s") if title == "chosen" else None
                speed = f"{row['predicted_voxels_per_s'] / 1e6:.1f}"
                line[f"{limit:.0f} GiB, {title}"] = f"{speed} ({ran / 1e6:.1f})" if ran else speed
    titles = [f"{limit} GiB, {title}" for limit in (4, 12) for title in ("fixed", "chosen")]
    table = markdown(
        [{key: lines[name][key] for key in ("network", *titles)} for name in sorted(lines)]
    )
    verb = "Predicted, and in brackets measured," if "(" in table else "Predicted"
    return f"{table}\n\n{caption(records, [*fixed, *chosen], verb)}"


def whole_jobs(records: Records) -> str:
    """Return the seconds of whole jobs by each strategy, with the predicted ones in brackets."""
    lines: dict[float, dict[str, str]] = {}
    for row in records[WHOLE_JOBS].rows:
        line = lines.setdefault(row["gpu_limit_gib"], {"GPU": f"{row['gpu_limit_gib']:g} GiB"})
        line[row["strategy"]] = f"{row['job_seconds']:.1f} s ({row['predicted_seconds']:.1f})"
    return f"{markdown(list(lines.values()))}\n\n{caption(records, [WHOLE_JOBS])}"


def borders(records: Records) -> str:
    """Return the fastest strategy for each network, link and memory of a GPU, over the cores."""
    used = sorted(name for name in records if name.startswith("paper-borders"))
    rows = [row for name in used for row in records[name].rows]
    lines: dict[tuple[str, float], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: (row["network"], row["link_gb_per_s"])):
        network, link, limit = row["network"], row["link_gb_per_s"], row["gpu_limit_gib"]
        head = {"network": network, "link": f"{link:g} GB/s"}
        lines.setdefault((network, link), head)[f"{limit:g} GiB"] = _over_cores(
            it
            for it in rows
            if (it["network"], it["link_gb_per_s"], it["gpu_limit_gib"]) == (network, link, limit)
        )
    return f"{markdown(list(lines.values()))}\n\n{caption(records, used, 'Predicted')}"


def _over_cores(rows: Iterable[Row]) -> str:
    """Return the strategies of some rows, each with the least cores from which it is fastest."""
    ordered = sorted(rows, key=lambda row: int(row["threads"]))
    runs = [(name, next(same)) for name, same in groupby(ordered, lambda row: row["strategy"])]
    return "; ".join(
        f"{name} from {row['threads']} cores" if place else str(name)
        for place, (name, row) in enumerate(runs)
    )


def sizes(records: Records) -> str:
    """Return predicted speeds of each strategy, for sizes of patches, with the memory they take."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in records[SIZES].rows:
        network, strategy, output = row["case"].split(", ")
        line = lines.setdefault((network, strategy), {"network": network, "strategy": strategy})
        extent = output.removeprefix("output ").removesuffix("^3")
        speed = row["predicted_voxels_per_s"] / 1e6
        line[f"{extent}³"] = f"{speed:.{1 if speed < 10 else 0}f} ({row['memory_gib']:.0f})"
    return f"{markdown(list(lines.values()))}\n\n{caption(records, [SIZES], 'Predicted')}"


def _shade(gain: float | None) -> str:
    """Return a square that is darker for a larger gain."""
    return next((it for limit, it in ((1.05, "□"), (2, "▤"), (5, "▦")) if (gain or 1) < limit), "■")


def layers_on_gpu(records: Records) -> Iterator[tuple[str, str, str, str]]:
    """Yield networks, their layers, and the kind of primitive in the paper and in the plan."""
    for row in records[MACHINE_PLANS].rows:
        if row["processor"] != TITAN:
            continue
        for step in row["layers"].split(", "):
            layer, *_, name = step.split()
            ours = next(kind for start, kind in KINDS.items() if name.startswith(start))
            yield row["network"], layer, published_primitive(row["network"], layer), ours


def table_iv(records: Records) -> str:
    """Return the kind of primitive of each layer on the paper's GPU, and ours if it differs."""
    lines: dict[str, dict[str, str]] = {}
    for network, layer, theirs, ours in layers_on_gpu(records):
        line = lines.setdefault(layer, {"layer": layer} | dict.fromkeys(NETWORKS, ""))
        line[network] = theirs if theirs == ours else f"{theirs}; here {ours}"
    table = markdown([lines[layer] for layer in sorted(lines)])
    return f"{table}\n\n{caption(records, [MACHINE_PLANS], 'Planned')}"


def shares_of_devices(records: Records) -> dict[str, list[Row]]:
    """Return the rows of each layer whose batch a host and a GPU share, by machine and layer.

    A measured layer takes the place of the same one in a record that is only predicted.
    """
    found: dict[str, list[Row]] = {}
    for name in shared(records):
        for case, rows in groupby(records[name].rows, lambda row: str(row["case"])):
            found[case] = list(rows)
    return found


def shared(records: Records) -> list[str]:
    """Return the names of these records, the predicted ones first."""
    names = (name for name in records if name.startswith("paper-side-by-side"))
    return sorted(names, key=lambda name: ("predicted" not in name, name))


def gain_of_share(row: Row) -> float:
    """Return the gain over the GPU alone: the measured one, or else the predicted one."""
    return float(row["gain"] if row.get("gain") else row["predicted_gain"])


def side_by_side(records: Records) -> str:
    """Return gains over the GPU alone for shares of a batch, and the planned and the best share."""
    lines = []
    for case, rows in shares_of_devices(records).items():
        machine, layer = case.split(": ")
        by_items = {row["items_on_host"]: row for row in rows}
        batch, planned = rows[0]["items"], rows[0]["planned_on_host"]
        best = max(rows, key=gain_of_share)["items_on_host"]
        line = {"machine": machine, "layer": layer.replace("->", " to ")}
        for title, items in (("planned", planned), ("best", best)):
            line[title] = f"{items} of {batch}: {_gain(by_items[items])}"
        for title, quarters in (("a quarter", 1), ("half", 2), ("three quarters", 3), ("all", 4)):
            line[title] = _gain(by_items[batch * quarters // 4])
        lines.append(line)
    return f"{markdown(lines)}\n\n{caption(records, shared(records), 'Measured or predicted')}"


def _gain(row: Row) -> str:
    """Return the gain over the GPU alone, with the predicted one in brackets."""
    predicted = f"({row['predicted_gain']:.2f})"
    return f"{row['gain']:.2f} {predicted}" if row.get("gain") else predicted


FIGURES: dict[str, Callable[[Records], str]] = {
    "regions": regions,
    "regions-cpu": partial(regions, name=REGIONS_OF_A_CORE),
    "borders": borders,
    "sizes": sizes,
    "host-ram": host_ram,
    "whole-jobs": whole_jobs,
    "table-iv": table_iv,
    "side-by-side": side_by_side,
}
