"""Tables of predictions, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from bench.record import Row
from bench.rooflines import by_kernel, by_network, patches_of
from bench.table import markdown
from performance_tables.parts import GPU_UNETS_AT_192, NETWORKS, Line, Records, caption, captioned

ROOFLINE_RECORDS = ("predicted-h200.json", GPU_UNETS_AT_192)


def rooflines(records: Records) -> str:
    """Return what bounds networks on a GPU, and what bounds each kernel in them.

    These are the sliding networks, and U-Nets in class tf32.
    """
    found = {
        patch.network: patch
        for name in ROOFLINE_RECORDS
        for patch in patches_of(records[name])
        if patch.accuracy != "float32"
    }
    lines = by_network(found.values())
    return f"{markdown(lines)}\n\n{captioned(records, ROOFLINE_RECORDS, by_kernel(found.values()))}"


def repeated(records: Records) -> str:
    """Return the share of work that plans do more than once, without sweeps and with them."""
    lines: dict[str, Line] = {}
    devices = {
        "sweeps-2-cores.json": "CPU",
        "sweeps-unet3d-2-cores.json": "CPU",
        "sweeps-h200.json": "GPU",
        "sweeps-unet3d-h200.json": "GPU",
        "sweeps-nnunet-h200.json": "GPU",
    }
    for name, device in devices.items():
        for row in sorted(records[name].rows, key=lambda row: (row["network"], row["memory_gib"])):
            line = lines.setdefault(str(row["network"]), {"network": str(row["network"])})
            share = f"{row['plain_repeated']:.0%}"
            if row["sweeps"]:
                gain = row["plain_seconds"] / row["chosen_seconds"]
                share += f", {row['chosen_repeated']:.0%} ({gain:.1f}x)"
            line[f"{device}, {row['memory_gib']:.0f} GiB"] = share
    titles = dict.fromkeys(title for line in lines.values() for title in line)
    filled = [{title: line.get(title, "") for title in titles} for line in lines.values()]
    return f"{markdown(filled)}\n\n{caption(records, devices, 'Predicted')}"


def gpu_predictions(records: Records) -> str:
    """Return whole patches on a GPU, measured and predicted by two models."""
    name = "predicted-h200.json"
    keys = ("seconds", "predicted_seconds", "built_in_seconds")
    titles = ("measured", "calibrated", "built-in")
    lines = []
    for network in NETWORKS:
        (row,) = (r for r in records[name].rows if (r["network"], r["layer"]) == (network, "all"))
        voxels = prod(int(extent) for extent in str(row["patch"]).split("x"))
        rates = [f"{voxels / row[key] / 1e6:.1f}" for key in keys]
        lines.append({"network": network, **dict(zip(titles, rates, strict=True))})
    return captioned(records, [name], lines)


def strategies(records: Records) -> str:
    """Return the paper's strategies on a GPU, by what they may take of its memory."""
    names = [f"strategies-h200{part}.json" for part in ("", "-alone", "-together")]
    rows = [row for name in names for row in records[name].rows]
    kinds = ("CPU-only", "GPU-only", "GPU + host RAM", "CPU-GPU")
    limits = sorted({row["gpu_limit_gib"] for row in rows if row.get("gpu_limit_gib")})
    lines = []
    for network in NETWORKS:
        found = {
            (row["strategy"], row.get("gpu_limit_gib")): row
            for row in rows
            if row["network"] == network
        }
        for limit in limits:
            alone = _taken(found[kinds[0], None]) if limit == limits[0] else ""
            taken = {kind: _taken(found[kind, limit]) for kind in kinds[1:]}
            about = {"network": network, "GPU memory": f"{limit:.0f} GiB", kinds[0]: alone}
            lines.append(about | taken)
        first = {kind: row for (kind, _), row in found.items()}
        paper = {kind: f"{first[kind]['published_voxels_per_s'] / 1e6:.2f}" for kind in kinds}
        lines.append({"network": f"{network}, ZNNi", "GPU memory": "12 GB", **paper})
    return captioned(records, names, lines)


def _taken(row: Row) -> str:
    """Return a strategy's rate in millions, with the GiB that it took of GPU and host."""
    millions, host = row["voxels_per_s"] / 1e6, f"{row['peak_gib']:.0f}"
    if row.get("gpu_peak_gib"):
        return f"{millions:.1f} ({row['gpu_peak_gib']:.1f} + {host})"
    return f"{millions:.2f} ({host})"


TABLES: dict[str, Callable[[Records], str]] = {
    "rooflines": rooflines,
    "gpu-predictions": gpu_predictions,
    "repeated": repeated,
    "strategies": strategies,
}
