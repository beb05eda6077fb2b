"""Tables of the page on CPUs, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from bench.record import Row
from performance_tables.parts import (
    NETWORKS,
    UNETS,
    Line,
    Records,
    about_network,
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

# The names of libraries that compute networks.
COMPUTED_BY = {"znni": "znni", "pytorch": "PyTorch", "onnxruntime": "ONNX Runtime"}


def cpu_unets(records: Records) -> str:
    """Return U-Nets on one window beside PyTorch, ONNX Runtime and OpenVINO, with their errors."""
    names = [f"unets-{network}-2-cores.json" for network in UNETS]
    lines = []
    for (network, title), name in zip(UNETS.items(), names, strict=True):
        rows = rows_by_name(records[name].rows, network)
        ours = rows["znni"]
        line = {
            "network": title,
            "window": str(ours["window"]),
            "memory": f"{ours['declared_gib']:.1f} GiB",
            "znni": f"{as_rate(ours)}, error {ours['error']:.0e}",
        }
        for peer, head in (
            ("openvino fp32", "OpenVINO float32"),
            ("torch-compiled fp32 channels_last_3d", "PyTorch float32, compiled"),
            ("onnxruntime fp32", "ONNX Runtime float32"),
            ("openvino bf16", "OpenVINO bfloat16"),
        ):
            line[head] = f"{beside_ours(rows[peer], ours)}, error {rows[peer]['error']:.0e}"
        lines.append(line)
    return captioned(records, names, lines)


def whole_scans(records: Records) -> str:
    """Return whole scans on two cores, from the file to the labels, beside nnU-Net's command."""
    return scan_table(records, [f"whole-scan-2-cores-{classes}.json" for classes in (25, 117)])


def cpu_networks(records: Records) -> str:
    """Return whole networks on a CPU beside PyTorch and MONAI."""
    name = "networks-2-cores.json"
    lines = []
    for network in NETWORKS:
        rows = rows_by_name(records[name].rows, network)
        ours = rows["znni"]
        lines.append(
            about_network(ours)
            | {
                "memory": f"{ours['peak_gib']:.1f} GiB",
                "PyTorch float32": beside_ours(rows["torch_fp32"], ours),
                "PyTorch bfloat16": beside_ours(rows["torch_bf16"], ours),
                "dilated float32": beside_ours(rows["dilated_fp32"], ours),
                "MONAI float32": beside_ours(rows["monai_fp32"], ours),
            }
        )
    return captioned(records, [name], lines)


def cpu_layers(records: Records) -> str:
    """Return the fastest primitive on a CPU for layers of 80 maps, beside PyTorch."""
    inputs = {1: "1 input of 64^3", 8: "8 of 48^3", 64: "64 of 32^3"}
    names = {f"layers-batch-{batch}.json": title for batch, title in inputs.items()}
    lines = []
    for kernel in (2, 3, 5, 7, 9):
        line = {"kernel": f"{kernel}^3"}
        for name, title in names.items():
            rows = _of_kernel(records[name].rows, kernel)
            ours = _fastest(rows, 2e-5)
            gain = gain_over(ours, max(torch_rows(rows, "bf16"), key=speed_of))
            line[title] = f"{_thousands(ours)} ({_same(ours)}, {gain})"
        ours = _fastest(rows, 1e-2)  # of the largest batch
        line["64 of 32^3, `--accuracy bfloat16`"] = f"{_thousands(ours)} ({_same(ours)})"
        lines.append(line)
    return captioned(records, names, lines)


def cpu_scaling(records: Records) -> str:
    """Return voxels per second by the number of threads, and the speed-up over the fewest."""
    cases = list(product((16, 64), ("n337", "n537")))
    names = [f"scaling-{network}-{cores}-cores.json" for cores, network in cases]
    lines = []
    programs = [
        (case, program, [row for row in records[name].rows if row["name"] == program])
        for case, name in zip(cases, names, strict=True)
        for program in dict.fromkeys(row["name"] for row in records[name].rows)
    ]
    for (cores, network), program, own in programs:
        rows = {row["threads"]: row for row in own if row.get("voxels_per_s")}
        line = {"machine": f"{cores} cores", "network": network}
        line |= {"program": str(program), "patch": str(own[0]["patch"])}
        for count in (1, 2, 4, 8, 16, 32, 64):
            row = rows.get(count)
            speedup = f" ({as_times(row['speedup'])})" if row and count > min(rows) else ""
            title = f"{count} threads" if count > 1 else "1 thread"
            line[title] = f"{as_rate(row)}{speedup}" if row else ""
        lines.append(line)
    return captioned(records, names, lines)


def imported_in_windows(records: Records) -> str:
    """Return how MedNeXt and transformers in windows differ from PyTorch and MONAI in float64."""
    names = [f"import-families-{kind}-2-cores.json" for kind in ("mednext", "transformers")]
    rows = [row for name in names for row in records[name].rows]
    lines: dict[str, Line] = {}
    for row in rows:
        head = {".onnx": "ONNX", ".pt2": "`.pt2`"}[row["source"]]
        line = lines.setdefault(
            row["name"],
            {
                "network": row["name"],
                "parameters": f"{row['parameters'] / 1e6:.1f} M",
                "window": row["size"],
                "volume": row["volume"],
            },
        )
        line[f"{head} is computed by"] = COMPUTED_BY[row["computed_by"]]
        line[f"{head}: one window"] = f"{row['window_error']:.0e}"
        line[f"{head}: volume"] = f"{row['volume_error']:.0e}"
    return captioned(records, names, list(lines.values()))


def _of_kernel(rows: Iterable[Row], kernel: int) -> list[Row]:
    wanted = f"{kernel}x{kernel}x{kernel}"
    return [row for row in rows if row["kernel"] == wanted and row.get("voxels_per_s")]


def _fastest(rows: Iterable[Row], error: float) -> Row:
    return max((row for row in our_rows(rows) if float(row["accuracy"]) <= error), key=speed_of)


def _thousands(row: Row) -> str:
    return f"{row['voxels_per_s'] / 1e3:,.0f}"


def _same(ours: Row) -> str:
    """Return the gain over PyTorch in the same class of accuracy, by the rounds of both."""
    return as_times(float(ours["ratio_to_torch"]))


TABLES: dict[str, Callable[[Records], str]] = {
    "cpu-networks": cpu_networks,
    "cpu-unets": cpu_unets,
    "imported-in-windows": imported_in_windows,
    "whole-scans": whole_scans,
    "cpu-layers": cpu_layers,
    "cpu-scaling": cpu_scaling,
}
