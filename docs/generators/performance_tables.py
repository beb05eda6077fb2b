"""Tables that compare znni's performance, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod

from bench.record import Record, Row
from bench.rooflines import by_kernel, by_network, patches_of
from bench.table import markdown

NETWORKS = ("n337", "n537", "n726", "n926")
UNETS = {
    "unet3d": "UNet3D",
    "nnunet": "nnU-Net with batch norm",
    "rsunet": "residual symmetric U-Net",
    "valid-unet": "valid U-Net",
}
GPU_UNETS = {
    "unet3d": UNETS["unet3d"],
    "nnunet": UNETS["nnunet"],
    "nnunet-instance": "nnU-Net, instance norm",
    "rsunet": UNETS["rsunet"],
    "valid-unet": UNETS["valid-unet"],
}

# U-Nets on one window of a GPU: of 192^3 (valid U-Net 204^3), of other extents, with the kernels of
# capability 8.0, and within less memory.
GPU_UNETS_AT_192 = "gpu-unets-h200-192.json"
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
ROOFLINE_RECORDS = ("predicted-h200.json", GPU_UNETS_AT_192)

# Contestants of whole runs in windows, where a page names them otherwise.
WINDOWED = {
    "znni": "znni, windows as MONAI's",
    "znni, as nnU-Net": "znni, windows as nnU-Net's",
    "znni, no windows": "znni, exact",
    "torch-compiled fp16 channels_last_3d": "MONAI's inferer, PyTorch float16, compiled",
    "torch fp16 channels_last_3d": "MONAI's inferer, PyTorch float16",
}

# The names of libraries that compute networks.
COMPUTED_BY = {"znni": "znni", "pytorch": "PyTorch", "onnxruntime": "ONNX Runtime"}

Records = Mapping[str, Record]
Line = dict[str, str]  # cells of a table by their titles


def caption(records: Records, names: Iterable[str], verb: str = "Measured") -> str:
    """Return the machines, dates and files of some records, in a line."""
    found: dict[str, None] = {}
    dates, files = [], []
    for name in names:
        about = records[name].about
        machine = about["machine"]
        gpus = [ceiling["device"] for ceiling in about["ceilings"] if "device" in ceiling]
        place = f"{machine['processor'].strip()}, {machine['threads']} threads"
        found[", ".join([*gpus[:1], place])] = None
        dates.append(str(about["date"])[:10])
        files.append(f"`{name}`")
    days = " to ".join(dict.fromkeys((min(dates), max(dates))))
    return f"*{verb} on {'; '.join(found)}, {days} ({', '.join(files)}).*"


def readme_table(records: Records) -> str:
    """Return the four networks against PyTorch, on two cores and on one GPU."""
    lines = []
    for network in NETWORKS:
        cpu = _by_name(records["networks-2-cores.json"].rows, network)
        gpu = _by_name(records[f"gpu-networks-{network}.json"].rows, network)
        lines.append(
            {
                "network": network,
                "2 CPU cores: znni": _millions(cpu["znni"]),
                "PyTorch float32": _beside(cpu["torch_fp32"], cpu["znni"], _millions),
                "NVIDIA H200: znni": _millions(gpu["znni"]),
                "PyTorch tf32": _beside(gpu["torch_tf32_fused"], gpu["znni"], _millions),
            }
        )
    return markdown(lines)


def readme_unets(records: Records) -> str:
    """Return the U-Nets against the fastest peer, OpenVINO, on two cores."""
    lines = []
    for network, title in UNETS.items():
        rows = _by_name(records[f"unets-{network}-2-cores.json"].rows, network)
        ours = rows["znni"]
        lines.append(
            {
                "network": title,
                "znni float32": _millions(ours),
                "OpenVINO float32": _beside(rows["openvino fp32"], ours, _millions),
                "OpenVINO bfloat16": _beside(rows["openvino bf16"], ours, _millions),
            }
        )
    return markdown(lines)


def cpu_unets(records: Records) -> str:
    """Return U-Nets on one window beside PyTorch, ONNX Runtime and OpenVINO, with their errors."""
    names = [f"unets-{network}-2-cores.json" for network in UNETS]
    lines = []
    for (network, title), name in zip(UNETS.items(), names, strict=True):
        rows = _by_name(records[name].rows, network)
        ours = rows["znni"]
        line = {
            "network": title,
            "window": str(ours["window"]),
            "memory": f"{ours['declared_gib']:.1f} GiB",
            "znni": f"{_rate(ours)}, error {ours['error']:.0e}",
        }
        for peer, head in (
            ("openvino fp32", "OpenVINO float32"),
            ("torch-compiled fp32 channels_last_3d", "PyTorch float32, compiled"),
            ("onnxruntime fp32", "ONNX Runtime float32"),
            ("openvino bf16", "OpenVINO bfloat16"),
        ):
            line[head] = f"{_beside(rows[peer], ours)}, error {rows[peer]['error']:.0e}"
        lines.append(line)
    return _captioned(records, names, lines)


def whole_scans(records: Records) -> str:
    """Return whole scans on two cores, from the file to the labels, beside nnU-Net's command."""
    return _whole_scans(records, [f"whole-scan-2-cores-{classes}.json" for classes in (25, 117)])


def gpu_whole_scans(records: Records) -> str:
    """Return a whole scan on a GPU, from the file to the labels, beside nnU-Net's command."""
    return _whole_scans(records, [f"whole-scan-h200-{count}.json" for count in (1, 5)])


def _whole_scans(records: Records, names: Sequence[str]) -> str:
    lines = []
    for name in names:
        ours, *peers = records[name].rows
        line = {"networks": str(ours["networks"]), "classes": str(ours["classes"])}
        line["znni"] = _scan(ours)
        first = f", {ours['first_peak_gib']:.1f} GiB" if "first_peak_gib" in ours else ""
        line["znni, first run"] = f"{ours['first_seconds']:.0f} s{first}"
        for peer in peers:
            line[str(peer["name"])] = f"{_scan(peer)} ({peer['seconds'] / ours['seconds']:.1f}x)"
        lines.append(line)
    return _captioned(records, names, lines)


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
    return _captioned(records, [name], [line])


def _scan(row: Row) -> str:
    """Return the seconds of a scan, and the peak memory."""
    return f"{row['seconds']:.0f} s, {row['peak_gib']:.1f} GiB"


def gpu_unets(records: Records) -> str:
    """Return U-Nets on one window of a GPU beside compiled PyTorch, with their errors."""
    names = [GPU_UNETS_AT_192, GPU_UNETS_ANEW]
    rows = [row for name in names for row in records[name].rows if row.get("windows", 1) == 1]
    return _captioned(records, names, [line for _, line in _beside_compiled(rows)])


def _beside_compiled(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Yield each U-Net's name, and its times on one window beside those of compiled PyTorch."""
    for network, title in GPU_UNETS.items():
        own = [row for row in rows if row["network"] == network]
        ours, peers = _by_class(own), _by_name(own, network)
        line = {
            "network": title,
            "memory": f"{ours['tf32']['declared_gib']:.1f} GiB",
            "class tf32": _window(ours["tf32"]),
            "float32": _window(ours["float32"]),
        }
        for head, name in COMPILED.items():
            line[head] = _window(peers[name]) if name in peers else ""
        yield network, line


def gpu_mednext(records: Records) -> str:
    """Return MedNeXt on one window of a GPU beside compiled PyTorch, with their errors."""
    lines, names = [], []
    for kernel in (3, 5):
        names.append(f"gpu-mednext-s-k{kernel}-h200.json")
        rows = records[names[-1]].rows
        ours = _by_class(rows)
        line = {"network": f"MedNeXt S, kernels {kernel}³"}
        for ours_in, said in (("tf32", ("fp16", "bf16")), ("float32", ("tf32",))):
            own = ours[ours_in]
            line[f"class {ours_in}"] = f"{own['seconds'] * 1e3:.1f} ms, error {own['error']:.0e}"
            for numbers in said:
                (peer,) = (row for row in rows if f" {numbers} " in str(row["name"]))
                line[f"PyTorch {numbers}"] = (
                    f"{peer['seconds'] * 1e3:.1f} ms ({_times(peer['seconds'] / own['seconds'])}), "
                    f"error {peer['error']:.0e}"
                )
        lines.append(line)
    return _captioned(records, names, lines)


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
            ours, peers = _by_class(here), _by_name(here, network)
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
    return _captioned(records, names, lines)


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
    return _captioned(records, names, lines)


def gpu_unets_on_h100(records: Records) -> str:
    """Return U-Nets on an H100 beside compiled PyTorch, and eight windows at once."""
    rows = records[GPU_UNETS_ON_H100].rows
    eight = {row["network"]: _window(row) for row in rows if row["batch"] == 8}
    at_192 = [row for row in rows if row["batch"] == 1 and row["window"] in AT_192]
    lines = [
        line | {"eight windows of 128³, class tf32": eight.get(network, "")}
        for network, line in _beside_compiled(at_192)
    ]
    return _captioned(records, [GPU_UNETS_ON_H100], lines)


def _by_class(rows: Iterable[Row]) -> dict[str, Row]:
    """Return our rows by their class of accuracy."""
    return {str(row["accuracy"]): row for row in rows if row["name"] == "znni"}


def _first_extent(window: str) -> int:
    return int(window.partition("x")[0])


def _window(row: Row) -> str:
    """Return the time of an output voxel of a window, and the error."""
    return f"{_per_voxel(row)}, error {row['error']:.0e}"


def _per_voxel(row: Row) -> str:
    return f"{1e9 / _speed(row):.2f} ns"


def _beside_window(peer: Row, ours: Row) -> str:
    """Return a peer's time of an output voxel, and how often ours fits into it."""
    return f"{_per_voxel(peer)} ({_speed(ours) / _speed(peer):.2f}x)"


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
    return _captioned(records, names, lines)


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
    return (
        f"{markdown(lines)}\n\n{_captioned(records, ROOFLINE_RECORDS, by_kernel(found.values()))}"
    )


def cpu_networks(records: Records) -> str:
    """Return whole networks on a CPU beside PyTorch and MONAI."""
    name = "networks-2-cores.json"
    lines = []
    for network in NETWORKS:
        rows = _by_name(records[name].rows, network)
        ours = rows["znni"]
        lines.append(
            _about_network(ours)
            | {
                "memory": f"{ours['peak_gib']:.1f} GiB",
                "PyTorch float32": _beside(rows["torch_fp32"], ours),
                "PyTorch bfloat16": _beside(rows["torch_bf16"], ours),
                "dilated float32": _beside(rows["dilated_fp32"], ours),
                "MONAI float32": _beside(rows["monai_fp32"], ours),
            }
        )
    return _captioned(records, [name], lines)


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
        rows = _by_name(records[name].rows, network)
        bf16 = _by_name(records[half[network]].rows, network)["torch_bf16_fused"]
        ours = rows["znni"]
        lines.append(
            _about_network(ours)
            | {
                "memory declared": f"{ours['declared_gib']:.1f} GiB",
                "PyTorch tf32": _beside(rows["torch_tf32_fused"], ours),
                "PyTorch bfloat16": _beside(bf16, ours),
            }
        )
    return _captioned(records, dict.fromkeys([*names, *half.values()]), lines)


def _about_network(ours: Row) -> Line:
    """Return the columns that our rows have on a CPU and on a GPU."""
    return {
        "network": str(ours["network"]),
        "patch": str(ours["patch"]),
        "znni": _rate(ours),
        "predicted": f"{ours['predicted_voxels_per_s']:,.0f}",
        "error": f"{ours['error']:.0e}",
    }


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
            gain = _gain(ours, max(_of_torch(rows, "bf16"), key=_speed))
            line[title] = f"{_thousands(ours)} ({_same(ours)}, {gain})"
        ours = _fastest(rows, 1e-2)  # of the largest batch
        line["64 of 32^3, `--accuracy bfloat16`"] = f"{_thousands(ours)} ({_same(ours)})"
        lines.append(line)
    return _captioned(records, names, lines)


def cpu_scaling(records: Records) -> str:
    """Return voxels per second by the number of threads."""
    names = ["scaling-n337-16-cores.json", "scaling-n537-16-cores.json"]
    lines = []
    for name in names:
        rows = {row["threads"]: row for row in records[name].rows}
        first = records[name].rows[0]
        line = {"network": str(first["work"]), "patch": str(first["patch"])}
        for count in (1, 2, 4, 8, 16):
            row = rows.get(count)
            speedup = f" ({_times(row['speedup'])})" if row and count > 1 else ""
            title = f"{count} threads" if count > 1 else "1 thread"
            line[title] = f"{_rate(row)}{speedup}" if row else ""
        lines.append(line)
    return _captioned(records, names, lines)


def gpu_layers(records: Records) -> str:
    """Return layers of 80 maps on a GPU beside PyTorch."""
    names = [f"gpu-layers-hidden-{kernel}.json" for kernel in (2, 3, 5, 7, 9)]
    lines = []
    for name in names:
        rows = records[name].rows
        ours = min(_ours(rows), key=_nanoseconds)
        line = {
            "kernel": str(ours["kernel"]),
            "primitive": str(ours["name"]),
            "ns a voxel": f"{ours['ns_per_voxel']:.2f}",
            "error": f"{ours['error']:.0e}",
            "bytes alone, ns": f"{ours['traffic_ns']:.2f}",
        }
        for title, kind in (("PyTorch tf32", "tf32"), ("PyTorch bfloat16", "bf16")):
            peer = min(map(_nanoseconds, _of_torch(rows, kind)))
            line[title] = f"{peer:.3g} ({peer / ours['ns_per_voxel']:.2g}x)"
        lines.append(line)
    return _captioned(records, names, lines)


def older_gpu(records: Records) -> str:
    """Return whole networks on a GPU that stands for an older one, beside PyTorch's best."""
    lines, used = [], {}
    for network in NETWORKS:
        stem = f"gpu-networks-as-8.0-{network}"
        rounded = {name: it for name, it in records.items() if name.startswith(f"{stem}-tf32")}
        newer = f"gpu-networks-{network}.json"
        used |= dict.fromkeys([*rounded, f"{stem}.json", newer])
        rows = [row for it in rounded.values() for row in it.rows if row.get("voxels_per_s")]
        ours = max(_ours(rows), key=_speed)
        (exact,) = _ours(records[f"{stem}.json"].rows)
        peers = _of_torch(rows, "tf32")
        of_newer = max(_of_torch(records[newer].rows, "tf32"), key=_speed)
        line = {
            "network": network,
            "class tf32": f"{_millions(ours)}, error {ours['error']:.0e}",
            "float32": f"{_millions(exact)}, error {exact['error']:.0e}",
        }
        best = max(peers, key=_speed, default=None)
        for title, peer in (("PyTorch tf32", best), ("PyTorch tf32 on an H200", of_newer)):
            gains = "" if peer is None else f" ({_gain(ours, peer)}, {_gain(exact, peer)})"
            line[title] = "out of memory" if peer is None else _millions(peer) + gains
        line["PyTorch bfloat16"] = _beside(
            max(_of_torch(rows, "bf16"), key=_speed), ours, _millions
        )
        lines.append(line)
    return _captioned(records, used, lines)


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
                f"{_times(row['over_peer'])})"
            )
        lines.append(line)
    return _captioned(records, [name], lines)


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


def repeated(records: Records) -> str:
    """Return the share of work that plans do more than once, without sweeps and with them."""
    lines: dict[str, Line] = {}
    devices = {"sweeps-2-cores.json": "CPU", "sweeps-h200.json": "GPU"}
    for name, device in devices.items():
        for row in sorted(records[name].rows, key=lambda row: (row["network"], row["memory_gib"])):
            line = lines.setdefault(str(row["network"]), {"network": str(row["network"])})
            share = f"{row['plain_repeated']:.0%}"
            if row["sweeps"]:
                gain = row["plain_seconds"] / row["chosen_seconds"]
                share += f", {row['chosen_repeated']:.0%} ({gain:.1f}x)"
            line[f"{device}, {row['memory_gib']:.0f} GiB"] = share
    return f"{markdown(list(lines.values()))}\n\n{caption(records, devices, 'Predicted')}"


def predicted_unets(records: Records) -> str:
    """Return the predicted milliseconds of one window of each U-Net on GPUs."""
    lines: dict[str, Line] = {}
    for row in records["gpu-predictions-unets.json"].rows:
        gpu = str(row["processor"]).removeprefix("NVIDIA ")
        line = lines.setdefault(gpu, {"GPU": gpu})
        line[GPU_UNETS[str(row["network"])]] = f"{row['predicted_seconds'] * 1e3:.0f} ms"
    return markdown(list(lines.values()))


def gpu_runs(records: Records) -> str:
    """Return whole runs over volumes on one and several GPUs."""
    name = "end-to-end-h200-x4.json"
    lines = [
        {
            "network": str(row["network"]),
            "volume": str(row["volume"]),
            "GPUs": str(row["gpus"]),
            "whole run": f"{row['seconds']:.1f} s",
            "voxels/s of the whole run": _rate(row),
            "voxels/s after the first patch": f"{row['later_voxels_per_s']:,.0f}",
        }
        for row in records[name].rows
    ]
    return _captioned(records, [name], lines)


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
    return _captioned(records, [name], lines)


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
    return _captioned(records, names, lines)


def _taken(row: Row) -> str:
    """Return a strategy's rate in millions, with the GiB that it took of GPU and host."""
    millions, host = row["voxels_per_s"] / 1e6, f"{row['peak_gib']:.0f}"
    if row.get("gpu_peak_gib"):
        return f"{millions:.1f} ({row['gpu_peak_gib']:.1f} + {host})"
    return f"{millions:.2f} ({host})"


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
    return _captioned(records, names, list(lines.values()))


TABLES: dict[str, Callable[[Records], str]] = {
    "readme": readme_table,
    "readme-unets": readme_unets,
    "cpu-networks": cpu_networks,
    "cpu-unets": cpu_unets,
    "imported-in-windows": imported_in_windows,
    "whole-scans": whole_scans,
    "gpu-whole-scans": gpu_whole_scans,
    "gpu-case-folder": gpu_case_folder,
    "cpu-layers": cpu_layers,
    "cpu-scaling": cpu_scaling,
    "gpu-networks": gpu_networks,
    "gpu-unets": gpu_unets,
    "gpu-unets-h100": gpu_unets_on_h100,
    "gpu-mednext": gpu_mednext,
    "gpu-unet-windows": gpu_unet_windows,
    "gpu-unets-elsewhere": gpu_unets_elsewhere,
    "gpu-windows": gpu_windows,
    "rooflines": rooflines,
    "gpu-layers": gpu_layers,
    "older-gpu": older_gpu,
    "older-layers": older_layers,
    "predicted-gpus": predicted_gpus,
    "predicted-unets": predicted_unets,
    "gpu-runs": gpu_runs,
    "gpu-predictions": gpu_predictions,
    "repeated": repeated,
    "strategies": strategies,
}


def _by_name(rows: Iterable[Row], network: str) -> dict[str, Row]:
    return {str(row["name"]): row for row in rows if row["network"] == network}


def _of_kernel(rows: Iterable[Row], kernel: int) -> list[Row]:
    wanted = f"{kernel}x{kernel}x{kernel}"
    return [row for row in rows if row["kernel"] == wanted and row.get("voxels_per_s")]


def _ours(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not str(row["name"]).startswith("torch")]


def _of_torch(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if str(row["name"]).startswith(f"torch_{kind}")]


def _speed(row: Row) -> float:
    return float(row["voxels_per_s"])


def _nanoseconds(row: Row) -> float:
    return float(row["ns_per_voxel"])


def _fastest(rows: Iterable[Row], error: float) -> Row:
    return max((row for row in _ours(rows) if float(row["accuracy"]) <= error), key=_speed)


def _rate(row: Row) -> str:
    return f"{row['voxels_per_s']:,.0f}"


def _millions(row: Row) -> str:
    millions = row["voxels_per_s"] / 1e6
    return f"{millions:.1f} M" if millions >= 10 else f"{millions:.2g} M"


def _thousands(row: Row) -> str:
    return f"{row['voxels_per_s'] / 1e3:,.0f}"


def _gain(ours: Row, peer: Row) -> str:
    return _times(ours["voxels_per_s"] / peer["voxels_per_s"])


def _same(ours: Row) -> str:
    """Return the gain over PyTorch in the same class of accuracy, by the rounds of both."""
    return _times(float(ours["ratio_to_torch"]))


def _times(gain: float) -> str:
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.1f}x"


def _beside(peer: Row, ours: Row, form: Callable[[Row], str] = _rate) -> str:
    return f"{form(peer)} ({_gain(ours, peer)})"


def _captioned(records: Records, names: Iterable[str], lines: Sequence[Line]) -> str:
    return f"{markdown(lines)}\n\n{caption(records, names)}"
