"""Tables of U-Nets on GPUs, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from bench.record import Row
from bench.table import markdown
from performance_tables.parts import (
    GPU_UNETS_AT_192,
    UNETS,
    Line,
    Records,
    as_times,
    captioned,
    rows_by_name,
    speed_of,
)

GPU_UNETS = {
    "unet3d": UNETS["unet3d"],
    "nnunet": UNETS["nnunet"],
    "nnunet-instance": "nnU-Net, instance norm",
    "rsunet": UNETS["rsunet"],
    "valid-unet": UNETS["valid-unet"],
}

# U-Nets on windows of other extents than 192^3, with the kernels of capability 8.0, and within less
# memory.
GPU_UNETS_OTHER_WINDOWS = "gpu-unets-h200-windows.json"
GPU_UNETS_ANEW = "gpu-unets-h200-one-gpu.json"  # ours, whose times count instead of earlier ones
GPU_UNETS_AS_8_0 = "gpu-unets-h200-as-8.0.json"
GPU_UNETS_LESS_MEMORY = "gpu-unets-h200-memory.json"
GPU_UNETS_ON_H100 = "gpu-unets-h100.json"
AT_192 = ("192x192x192", "204x204x204")  # the valid U-Net takes windows of other extents
COMPILED = {
    f"PyTorch {title}": f"torch-compiled {kind}"
    for title, kind in {
        "float16": "fp16 channels_last_3d",
        "tf32": "tf32 channels_last_3d",
        "float32": "fp32 contiguous_format",
    }.items()
}
# Contestants of whole runs in windows, where a page names them otherwise.
WINDOWED = {
    "znni": "znni, windows as MONAI's",
    "znni, as nnU-Net": "znni, windows as nnU-Net's",
    "znni, no windows": "znni, exact",
    "torch-compiled fp16 channels_last_3d": "MONAI's inferer, PyTorch float16, compiled",
    "torch fp16 channels_last_3d": "MONAI's inferer, PyTorch float16",
}


def gpu_unets(records: Records) -> str:
    """Return U-Nets on one window of a GPU beside compiled PyTorch, with their errors."""
    names = [GPU_UNETS_AT_192, GPU_UNETS_ANEW]
    rows = [row for name in names for row in records[name].rows if row.get("windows", 1) == 1]
    return captioned(records, names, [line for _, line in _beside_compiled(rows)])


def _beside_compiled(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Yield each U-Net's name, and its times on one window beside those of compiled PyTorch."""
    for network, title in GPU_UNETS.items():
        own = [row for row in rows if row["network"] == network]
        ours, peers = _by_class(own), rows_by_name(own, network)
        line = {
            "network": title,
            "memory": f"{ours['tf32']['declared_gib']:.1f} GiB",
            "class tf32": _window(ours["tf32"]),
            "float32": _window(ours["float32"]),
        }
        for head, name in COMPILED.items():
            line[head] = _window(peers[name]) if name in peers else ""
        yield network, line


# Records of MedNeXt on windows of a GPU.
GPU_MEDNEXT = {
    "gpu-mednext-s-k3-h200.json": "MedNeXt S, kernels 3³",
    "gpu-mednext-s-k3-windows-h200.json": "MedNeXt S, kernels 3³",
    "gpu-mednext-s-k5-h200.json": "MedNeXt S, kernels 5³",
    "gpu-mednext-s-k5-windows-h200.json": "MedNeXt S, kernels 5³",
    "gpu-mednext-m-k3-h200.json": "MedNeXt M, kernels 3³",
}


def gpu_mednext(records: Records) -> str:
    """Return MedNeXt on one window of a GPU beside compiled PyTorch, with errors and floors."""
    lines = [
        _mednext_line(title, extent, list(rows))
        for name, title in GPU_MEDNEXT.items()
        for extent, rows in groupby(records[name].rows, lambda row: str(row["window"]))
    ]
    return captioned(records, list(GPU_MEDNEXT), lines)


def _mednext_line(title: str, extent: str, rows: list[Row]) -> Line:
    side, ours = extent.split("x", maxsplit=1)[0], _by_class(rows)
    peers = rows_by_name(rows, str(rows[0]["network"]))
    line = {"network": title, "window": f"{side}³"}
    for ours_in, said in (("tf32", ("fp16", "bf16")), ("float32", ("tf32",))):
        own = ours[ours_in]
        floor = sum(step["floor_seconds"] or 0.0 for step in own["steps"])
        line[f"class {ours_in} (floor)"] = (
            f"{own['seconds'] * 1e3:.1f} ms ({floor * 1e3:.1f}), error {own['error']:.0e}"
        )
        for numbers in said:
            peer = peers.get(f"torch-compiled {numbers} contiguous_format")
            line[f"PyTorch {numbers}"] = _mednext_peer(peer, own) if peer else ""
    return line


def _mednext_peer(peer: Row, own: Row) -> str:
    gain = as_times(peer["seconds"] / own["seconds"])
    return f"{peer['seconds'] * 1e3:.1f} ms ({gain}), error {peer['error']:.0e}"


def gpu_unet_windows(records: Records) -> str:
    """Return U-Nets on windows of several extents of a GPU, in nanoseconds a voxel."""
    names = [GPU_UNETS_AT_192, GPU_UNETS_OTHER_WINDOWS, GPU_UNETS_ANEW]
    rows = [row for name in names for row in records[name].rows if row.get("windows", 1) == 1]
    lines = []
    for network, title in GPU_UNETS.items():
        own = [row for row in rows if row["network"] == network]
        windows = dict.fromkeys(sorted(str(row["window"]) for row in own))
        for window in sorted(windows, key=_first_extent):
            here = [row for row in own if row["window"] == window]
            ours, peers = _by_class(here), rows_by_name(here, network)
            half, whole = (peers[name] for name in list(COMPILED.values())[:2])
            lines.append(
                {
                    "network": title,
                    "window": window,
                    "class tf32": f"{_per_voxel(ours['tf32'])}",
                    "PyTorch float16": _beside_window(half, ours["tf32"]),
                    "float32": f"{_per_voxel(ours['float32'])}",
                    "PyTorch tf32": _beside_window(whole, ours["float32"]),
                }
            )
    return captioned(records, names, lines)


def gpu_unets_elsewhere(records: Records) -> str:
    """Return U-Nets with the kernels of capability 8.0, and within less memory of a GPU."""
    names = [GPU_UNETS_AS_8_0, GPU_UNETS_LESS_MEMORY]
    lines = []
    for network, title in GPU_UNETS.items():
        for name in names:
            rows = [row for row in records[name].rows if row["network"] == network]
            for window, allowed in dict.fromkeys(
                (str(row["window"]), row.get("allowed_gib")) for row in rows
            ):
                here = [
                    row
                    for row in rows
                    if (row["window"], row.get("allowed_gib")) == (window, allowed)
                ]
                ours = _by_class(here)
                lines.append(
                    {
                        "network": title,
                        "limit": f"{allowed:.0f} GiB" if allowed else "capability 8.0",
                        "window": window,
                        "class tf32": _window(ours["tf32"]),
                        "float32": _window(ours["float32"]),
                        "memory": " and ".join(
                            f"{ours[kind]['declared_gib']:.1f}" for kind in ("tf32", "float32")
                        )
                        + " GiB",
                    }
                )
    return captioned(records, names, lines)


def gpu_unets_on_h100(records: Records) -> str:
    """Return U-Nets on an H100 beside compiled PyTorch, and eight windows at once."""
    rows = records[GPU_UNETS_ON_H100].rows
    eight = {row["network"]: _window(row) for row in rows if row["batch"] == 8}
    at_192 = [row for row in rows if row["batch"] == 1 and row["window"] in AT_192]
    lines = [
        line | {"eight windows of 128³, class tf32": eight.get(network, "")}
        for network, line in _beside_compiled(at_192)
    ]
    return captioned(records, [GPU_UNETS_ON_H100], lines)


def _by_class(rows: Iterable[Row]) -> dict[str, Row]:
    """Return our rows by their class of accuracy."""
    return {str(row["accuracy"]): row for row in rows if row["name"] == "znni"}


def _first_extent(window: str) -> int:
    return int(window.partition("x")[0])


def _window(row: Row) -> str:
    """Return the time of an output voxel of a window, and the error."""
    return f"{_per_voxel(row)}, error {row['error']:.0e}"


def _per_voxel(row: Row) -> str:
    return f"{1e9 / speed_of(row):.2f} ns"


def _beside_window(peer: Row, ours: Row) -> str:
    """Return a peer's time of an output voxel, and how often ours fits into it."""
    return f"{_per_voxel(peer)} ({speed_of(ours) / speed_of(peer):.2f}x)"


def gpu_windows(records: Records) -> str:
    """Return whole runs of U-Nets over a volume on a GPU, beside MONAI and nnU-Net."""
    names = [name for name in records if name.startswith("gpu-sliding-windows-")]
    lines = [
        {
            "network": GPU_UNETS[str(row["network"])],
            "contestant": WINDOWED.get(str(row["name"]), str(row["name"]))
            + ", mirrored" * bool(row["mirror"]),
            "first run": f"{row.get('first_seconds') or row['seconds']:.1f} s",
            "later runs": f"{row['seconds']:.1f} s" if row.get("first_seconds") else "",
            "without starting": f"{row['work_seconds']:.2f} s",
            "GPU memory": f"{row['gpu_peak_gib']:.1f} GiB",
            "other labels": f"{row['labels_apart']:.1e}" if row.get("labels_apart") else "",
        }
        for name in names
        for row in records[name].rows
        if "skipped" not in row
    ]
    return captioned(records, names, lines)


def predicted_unets(records: Records) -> str:
    """Return the predicted milliseconds of one window of each U-Net on GPUs."""
    lines: dict[str, Line] = {}
    for row in records["gpu-predictions-unets.json"].rows:
        gpu = str(row["processor"]).removeprefix("NVIDIA ")
        line = lines.setdefault(gpu, {"GPU": gpu})
        line[GPU_UNETS[str(row["network"])]] = f"{row['predicted_seconds'] * 1e3:.0f} ms"
    return markdown(list(lines.values()))


TABLES: dict[str, Callable[[Records], str]] = {
    "gpu-unets": gpu_unets,
    "gpu-unets-h100": gpu_unets_on_h100,
    "gpu-mednext": gpu_mednext,
    "gpu-unet-windows": gpu_unet_windows,
    "gpu-unets-elsewhere": gpu_unets_elsewhere,
    "gpu-windows": gpu_windows,
    "predicted-unets": predicted_unets,
}
