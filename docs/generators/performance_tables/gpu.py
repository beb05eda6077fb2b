"""Tables of the page on GPUs, but those of U-Nets, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable

from bench.record import Row
from bench.table import markdown
from performance_tables.parts import (
    NETWORKS,
    Line,
    Records,
    about_network,
    as_millions,
    as_rate,
    as_times,
    beside_ours,
    captioned,
    gain_over,
    our_rows,
    rows_by_name,
    scan_table,
    speed_of,
    torch_rows,
)


def gpu_whole_scans(records: Records) -> str:
    """Return a whole scan on a GPU, from the file to the labels, beside nnU-Net's command."""
    return scan_table(records, [f"whole-scan-h200-{count}.json" for count in (1, 5)])


def gpu_case_folder(records: Records) -> str:
    """Return a folder of cases on a GPU: seconds, and the share of time in which it computes."""
    name = "case-folder-h200.json"
    row = records[name].rows[-1]
    line = {
        "cases": str(row["cases"]),
        "all": f"{row['seconds']:.0f} s",
        "until the first network is done": f"{row['first_seconds']:.0f} s",
        "each further case": f"{row['each_seconds']:.2f} s",
        "GPU at work meanwhile": f"{row['gpu_busy']:.0%}",
        "host's memory": f"{row['peak_gib']:.1f} GiB",
    }
    return captioned(records, [name], [line])


def gpu_networks(records: Records) -> str:
    """Return whole networks on a GPU beside PyTorch."""
    half = {
        "n337": "gpu-networks-n337.json",
        "n537": "gpu-networks-n537-60gib.json",
        "n726": "gpu-networks-bf16-n726.json",
        "n926": "gpu-networks-bf16-n926.json",
    }
    names = [f"gpu-networks-{network}.json" for network in NETWORKS]
    lines = []
    for name, network in zip(names, NETWORKS, strict=True):
        rows = rows_by_name(records[name].rows, network)
        bf16 = rows_by_name(records[half[network]].rows, network)["torch_bf16_fused"]
        ours = rows["znni"]
        lines.append(
            about_network(ours)
            | {
                "memory declared": f"{ours['declared_gib']:.1f} GiB",
                "PyTorch tf32": beside_ours(rows["torch_tf32_fused"], ours),
                "PyTorch bfloat16": beside_ours(bf16, ours),
            }
        )
    return captioned(records, dict.fromkeys([*names, *half.values()]), lines)


def gpu_layers(records: Records) -> str:
    """Return layers of 80 maps on a GPU beside PyTorch."""
    names = [f"gpu-layers-hidden-{kernel}.json" for kernel in (2, 3, 5, 7, 9)]
    lines = []
    for name in names:
        rows = records[name].rows
        ours = min(our_rows(rows), key=_nanoseconds)
        line = {
            "kernel": str(ours["kernel"]),
            "primitive": str(ours["name"]),
            "ns a voxel": f"{ours['ns_per_voxel']:.2f}",
            "error": f"{ours['error']:.0e}",
            "bytes alone, ns": f"{ours['traffic_ns']:.2f}",
        }
        for title, kind in (("PyTorch tf32", "tf32"), ("PyTorch bfloat16", "bf16")):
            peer = min(map(_nanoseconds, torch_rows(rows, kind)))
            line[title] = f"{peer:.3g} ({peer / ours['ns_per_voxel']:.2g}x)"
        lines.append(line)
    return captioned(records, names, lines)


def older_gpu(records: Records) -> str:
    """Return whole networks on a GPU that stands for an older one, beside PyTorch's best."""
    lines, used = [], {}
    for network in NETWORKS:
        stem = f"gpu-networks-as-8.0-{network}"
        rounded = {name: it for name, it in records.items() if name.startswith(f"{stem}-tf32")}
        newer = f"gpu-networks-{network}.json"
        used |= dict.fromkeys([*rounded, f"{stem}.json", newer])
        rows = [row for it in rounded.values() for row in it.rows if row.get("voxels_per_s")]
        ours = max(our_rows(rows), key=speed_of)
        (exact,) = our_rows(records[f"{stem}.json"].rows)
        peers = torch_rows(rows, "tf32")
        of_newer = max(torch_rows(records[newer].rows, "tf32"), key=speed_of)
        line = {
            "network": network,
            "class tf32": f"{as_millions(ours)}, error {ours['error']:.0e}",
            "float32": f"{as_millions(exact)}, error {exact['error']:.0e}",
        }
        best = max(peers, key=speed_of, default=None)
        for title, peer in (("PyTorch tf32", best), ("PyTorch tf32 on an H200", of_newer)):
            gains = "" if peer is None else f" ({gain_over(ours, peer)}, {gain_over(exact, peer)})"
            line[title] = "out of memory" if peer is None else as_millions(peer) + gains
        line["PyTorch bfloat16"] = beside_ours(
            max(torch_rows(rows, "bf16"), key=speed_of), ours, as_millions
        )
        lines.append(line)
    return captioned(records, used, lines)


def older_layers(records: Records) -> str:
    """Return single layers for an older chip, beside those for the GPU's own and PyTorch."""
    name = "gpu-chips-8.0.json"
    lines: list[Line] = []
    for kernel in dict.fromkeys(row["kernel"] for row in records[name].rows):
        rows = [r for r in records[name].rows if (r["kernel"], r.get("chip")) == (kernel, "8.0")]
        line = {"kernel": str(kernel)}
        for row in rows:
            maps = str(row["maps"]).split(">")[1]
            line[f"{maps} maps"] = (
                f"{row['ns_per_voxel']:.3g} ns ({row['share_of_own']:.0%}, "
                f"{as_times(row['over_peer'])})"
            )
        lines.append(line)
    return captioned(records, [name], lines)


def predicted_gpus(records: Records) -> str:
    """Return what GPUs are predicted to do: class tf32, float32, and cuDNN in the class of tf32."""
    lines = []
    names = [f"gpu-predictions{part}.json" for part in ("-tf32", "", "-cudnn")]
    rows = [{(r["processor"], r["network"]): r for r in records[name].rows} for name in names]
    for processor in dict.fromkeys(row["processor"] for row in records[names[0]].rows):
        line = {"GPU": str(processor).removeprefix("NVIDIA ")}
        for network in NETWORKS:
            rates = [of[processor, network]["layers_voxels_per_s"] / 1e6 for of in rows]
            line[network] = " / ".join(
                f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}" for rate in rates
            )
        lines.append(line)
    return markdown(lines)


def gpu_runs(records: Records) -> str:
    """Return whole runs over volumes on one and several GPUs."""
    name = "end-to-end-h200-x4.json"
    lines = [
        {
            "network": str(row["network"]),
            "volume": str(row["volume"]),
            "GPUs": str(row["gpus"]),
            "whole run": f"{row['seconds']:.1f} s",
            "voxels/s of the whole run": as_rate(row),
            "voxels/s after the first patch": f"{row['later_voxels_per_s']:,.0f}",
        }
        for row in records[name].rows
    ]
    return captioned(records, [name], lines)


def _nanoseconds(row: Row) -> float:
    return float(row["ns_per_voxel"])


TABLES: dict[str, Callable[[Records], str]] = {
    "gpu-whole-scans": gpu_whole_scans,
    "gpu-case-folder": gpu_case_folder,
    "gpu-networks": gpu_networks,
    "gpu-layers": gpu_layers,
    "older-gpu": older_gpu,
    "older-layers": older_layers,
    "predicted-gpus": predicted_gpus,
    "gpu-runs": gpu_runs,
}
