"""The tables and figures of five papers, one line each: their number, ours, and the command."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import geometric_mean
from typing import NamedTuple

from paper_figures import (
    FIGURES,
    MACHINE_PLANS,
    REGIONS,
    SIZES,
    STRATEGIES,
    Records,
    gain_of_share,
    layers_on_gpu,
    shares_of_devices,
)
from performance_tables.parts import caption

from bench.paper.published import NETWORKS, published
from bench.record import Row
from bench.table import markdown
from znni.core.option_types import ACCURACIES

# Records of the commands, which the GPU's machine wrote in one session.
PRUNED = {"CPU": "paper-pruned-ffts-cpu.json", "GPU": "paper-pruned-ffts-gpu.json"}
SUBSAMPLINGS = "paper-subsamplings-h200.json"
LOWERING, BATCHING = "paper-lowering-16-cores.json", "paper-batching-16-cores.json"
SPEEDUPS = "paper-fft-speedups.json"
CUDNN_LAYER = "gpu-layers-hidden-3.json"
PIECES, SHARES = "micro-batches-whole-image-and-lowered.json", "shares-measured.json"
ENGINES = "paper-micro-batches-h200.json"
USED = (
    *PRUNED.values(), SUBSAMPLINGS, REGIONS, LOWERING, BATCHING, SPEEDUPS, SIZES, *STRATEGIES,
    CUDNN_LAYER, PIECES, SHARES, ENGINES, MACHINE_PLANS,
)  # fmt: skip

DIAGRAM = "a diagram"
SIZES_LINK = "[for each size](#throughput-over-the-size-of-patches)"
TRAINING = "no: znni does not train, so it has no backward passes"


class Evaluation(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        paper: the paper.
        place: its table or figure.
        what: its subject.
        theirs: the paper's number.
        ours: our number, made from records, or the reason why there is none.
        command: the arguments of ``python -m bench``, or a command that begins with ``znni``.
    """

    paper: str
    place: str
    what: str
    theirs: str
    ours: str | Callable[[Records], str]
    command: str = ""


def evaluations(records: Records) -> str:
    """Return all tables and figures of the papers as a table."""
    table = markdown(
        [
            {
                "paper": it.paper,
                "table or figure": f"{it.place}: {it.what}",
                "theirs": it.theirs,
                "ours": it.ours if isinstance(it.ours, str) else it.ours(records),
                "command": f"`{it.command}`" if it.command else "",
            }
            for it in EVALUATIONS
        ]
    )
    return f"{table}\n\n{caption(records, USED, 'Measured or predicted')}"


def _pruned(records: Records) -> str:
    said = []
    for device, name in PRUNED.items():
        gains = [row["gain"] for row in records[name].rows if row["name"] == "pruned"]
        said.append(f"{device} {geometric_mean(gains):.1f}x ({min(gains):.1f} to {max(gains):.1f})")
    return ", ".join(said)


def _operations(records: Records) -> str:
    said = []
    for title, tiles in product(("one pooling", "two poolings"), (False, True)):
        rows = [row for row in records[SPEEDUPS].rows if row["case"].startswith(title)]
        own = [row for row in rows if ", within 12" in row["case"]]
        own = [row for row in own if row["name"].endswith(", tiles") == tiles]
        best = max(own, key=lambda row: float(row["gain"]))
        gain = best["gain"] / next(row["gain"] for row in own if row["inputs"] == 1)
        several = f"{best['inputs']} inputs are best, {gain:.2f}x of one"
        said.append(
            f"{title}, {'tiles' if tiles else 'whole images'}: "
            f"{several if best['inputs'] > 1 else 'one input is best'}"
        )
    return "within 12 GiB, " + "; ".join(said)


def _growth(records: Records) -> str:
    rates = {row["case"]: row["predicted_voxels_per_s"] for row in records[SIZES].rows}
    gains = [
        rates[f"{name}, GPU-only, output 256^3"] / rates[f"{name}, GPU-only, output 64^3"]
        for name in NETWORKS
        if f"{name}, GPU-only, output 64^3" in rates
    ]
    return "GPU-only, 256³ over 64³: " + ", ".join(f"{it:.1f}x" for it in gains) + " (predicted)"


def _over_memory(records: Records) -> str:
    """Return the speeds of each strategy with the least and with the most memory."""
    rows: dict[str, list[Row]] = {}
    for row in records[SIZES].rows:
        network, strategy, _ = row["case"].split(", ")
        if network == "n537":
            rows.setdefault(strategy, []).append(row)
    said = []
    for strategy, own in rows.items():
        own.sort(key=lambda row: float(row["memory_gib"]))
        least, most = (
            f"{row['predicted_voxels_per_s'] / 1e6:.1f} ({row['memory_gib']:.0f} GiB)"
            for row in (own[0], own[-1])
        )
        said.append(f"{strategy} {least} to {most}")
    return f"n537, million voxels/s: {'; '.join(said)} (predicted); {SIZES_LINK}"


def _layers_alike(records: Records) -> str:
    alike = [theirs == ours for _, _, theirs, ours in layers_on_gpu(records)]
    return (
        f"{sum(alike)} of {len(alike)} layers have the paper's kind of primitive, "
        "[planned for its GPU](#the-primitives-of-table-iv)"
    )


def _shared(records: Records) -> str:
    best: dict[str, list[float]] = {}
    for case, rows in shares_of_devices(records).items():
        gains = {row["items_on_host"]: gain_of_share(row) for row in rows}
        measured = any("gain" in row for row in rows)
        machine = f"{case.partition(':')[0]} ({'measured' if measured else 'predicted'})"
        best.setdefault(machine, []).append(max(gains.values()))
    said = (f"{name} up to {max(found):.2f}x" for name, found in best.items())
    return f"best share over the GPU alone: {', '.join(said)}; [shares](#cpu-and-gpu-in-one-layer)"


def _strategies(records: Records) -> str:
    rows = [row for name in STRATEGIES for row in records[name].rows if row.get("voxels_per_s")]
    said = []
    for network in NETWORKS:
        best = max(
            (row for row in rows if row["network"] == network),
            key=lambda row: float(row["voxels_per_s"]),
        )
        said.append(f"{network} {best['voxels_per_s'] / 1e6:.0f} ({best['strategy']})")
    return ", ".join(said) + " million voxels/s"


def _published_best(strategy: str) -> str:
    rates = [(published(name, strategy) or 0) / 1e6 for name in NETWORKS]
    return ", ".join(f"{rate:.2f}" for rate in rates) + " million voxels/s"


def _subsamplings(records: Records) -> str:
    rows = [row for row in records[SUBSAMPLINGS].rows if row["name"] == "fragments"]
    return "fragments " + ", ".join(
        f"{row['gain']:.1f}x ({row['case'].partition(',')[0]})" for row in rows
    )


def _region_gains(records: Records) -> str:
    gains: dict[int, float] = {}
    for row in records[REGIONS].rows:
        if row.get("gain"):
            gains[row["kernel"]] = max(row["gain"], gains.get(row["kernel"], 0.0))
    return "up to " + ", ".join(f"{gain:.1f}x ({k}³)" for k, gain in sorted(gains.items()))


def _lowering(records: Records) -> str:
    gains = [
        row["gain"] for row in records[LOWERING].rows if row["name"] == "lowered_expensive_lifting"
    ]
    return f"type 3 over type 1: {min(gains):.1f}x to {max(gains):.1f}x"


def _batching(records: Records) -> str:
    rows = records[BATCHING].rows
    said = []
    for title, name in (
        ("one product an image", "lowered_expensive_lowering"),
        ("in blocks", "lowered_expensive_lowering_blocked"),
        ("direct", "direct"),
    ):
        own = [row for row in rows if row["case"].endswith(f", {name}")]
        gains = [row["gain"] for row in own if row["name"] == "64 images"]
        said.append(f"{title} {geometric_mean(gains):.1f}x")
    return "64 images over one, time an image: " + ", ".join(said)


def _cudnn(records: Records) -> str:
    rows = [row for row in records[CUDNN_LAYER].rows if row.get("seconds")]
    ours = [row for row in rows if row.get("accuracy", 1.0) <= ACCURACIES["float32"]]
    theirs = [row for row in rows if row["name"].startswith("torch_fp32")]
    gain = max(map(_rate, ours)) / max(map(_rate, theirs))
    return f"over cuDNN, float32, 80 maps, kernel 3³: {gain:.1f}x"


def _rate(row: Row) -> float:
    return float(row["voxels"]) / float(row["seconds"])


def _pieces(records: Records) -> str:
    rows = records[PIECES].rows
    gains = [row["gain"] for row in rows if row.get("gain") and row["division"] == "all"]
    return f"up to {max(gains):.2f}x over undivided, on the CPU"


def _engines(records: Records) -> str:
    gain = max(row["gain"] for row in records[ENGINES].rows)
    return f"pieces over undivided, forward: at most {gain:.2f}x"


def _joint(records: Records) -> str:
    rows = records[SHARES].rows
    gains = [row["gain"] for row in rows if row.get("gain") and row["shares"] == "equal"]
    return f"joint over equal shares: up to {max(gains):.2f}x, on the CPU"


ZNNI, CUDNN, MICRO = "ZNNi", "cuDNN", "µ-cuDNN"
FBFFT, TROLL = "fbfft", "Caffe con Troll"
EVALUATIONS = (
    Evaluation(ZNNI, "Figure 1", "primitives", DIAGRAM, "the catalogue", "exercise"),
    Evaluation(
        ZNNI, "Figure 2, III", "pruned FFTs of kernels over padded ones", "CPU 5x, GPU 10x",
        _pruned, "paper pruned-ffts",
    ),
    Evaluation(
        ZNNI, "Tables I and II", "operations and memory of a layer", "formulas",
        "each primitive declares both, and a test measures the memory", "layers",
    ),
    Evaluation(ZNNI, "Figure 3", "tasks of a layer", DIAGRAM, "`fft_task_parallel`"),
    Evaluation(ZNNI, "Table III", "networks", "four", "the same, in `networks/`", "network"),
    Evaluation(
        ZNNI, "Figure 4", "operations saved by fragments, for batches of inputs",
        "two poolings: one input is best; one: perhaps several", _operations,
        "paper fft-speedups",
    ),
    Evaluation(
        ZNNI, "Figure 5", "throughput over the size of patches", "a plot; larger is faster",
        _growth, "paper sizes",
    ),
    Evaluation(
        ZNNI, "Table IV", "fastest GPU primitive of each layer",
        "cuDNN for small kernels, FFT for large ones", _layers_alike, "paper machine-plans",
    ),
    Evaluation(ZNNI, "Figure 6", "a layer in sub-layers", DIAGRAM, "`host_ram_...`"),
    Evaluation(
        ZNNI, "Figure 7", "throughput over memory, for each strategy",
        "a plot, which ends at Table V's rates", _over_memory, "paper sizes",
    ),
    Evaluation(
        ZNNI, "Figure 8", "timeline of the stages", DIAGRAM, "a Chrome trace of any run",
        "znni infer ... --trace FILE",
    ),
    Evaluation(
        ZNNI, "Table V", "strategies, best of each network", _published_best("ZNNi CPU-GPU"),
        _strategies, "paper run-strategies",
    ),
    Evaluation(
        ZNNI, "Table V", "all subsamplings by cuDNN, beside fragments",
        "n337 5.3x, n726 0.5x (ELEKTRONN)", _subsamplings, "paper subsamplings",
    ),
    Evaluation(ZNNI, "Table V", "four sockets, 72 cores", "CPU-only", "no such machine is at hand"),
    Evaluation(CUDNN, "Table 1, Figure 1", "parameters, and lowering", DIAGRAM, "`lowered_...`"),
    Evaluation(
        CUDNN, "Table 2, Figure 2", "layers, beside Caffe and cuda-convnet2",
        "1.0x to 1.4x of Caffe, 0.8x to 2.3x of cuda-convnet2", _cudnn, "layers --device gpu",
    ),
    Evaluation(
        CUDNN, "Table 3", "share of the peak on two architectures", "23 to 35 %, 30 to 51 %",
        "[kernels for older chips](gpu.md)", "chips",
    ),
    Evaluation(CUDNN, "Table 4", "training Caffe's network", "1.36x", TRAINING),
    Evaluation(
        MICRO, "Figures 1, 8 and 9", "one layer within a workspace", "2.33x at 64 MiB",
        _pieces, "paper micro-batches",
    ),
    Evaluation(MICRO, "Figures 2 to 7", "convolution, micro-batches, WR and WD", DIAGRAM,
               "[the search](../explanation/search.md)"),
    Evaluation(
        MICRO, "Figures 10, 11 and 13", "three networks within 8, 64 and 512 MiB a layer",
        "1.1x to 1.8x at 64 MiB, training", _engines, "paper micro-batches --device gpu",
    ),
    Evaluation(
        MICRO, "Table I", "three GPUs for training", "their data", TRAINING,
    ),
    Evaluation(
        MICRO, "Figure 12", "memory of each layer", "up to 3.4x less",
        "[what pieces save](memory.md)", "paper micro-batches",
    ),
    Evaluation(
        MICRO, "Figures 13 and 14", "memory divided jointly", "1.24x over equal shares",
        _joint, "paper shares",
    ),
    Evaluation(
        FBFFT, "Table 1", "steps of a layer", "a list",
        "[tiled FFT](../explanation/tiled-fft.md)",
    ),
    Evaluation(
        FBFFT, "Table 2, Figures 1 to 6", "FFT over cuDNN, for sizes of layers",
        "up to 1.8x (3²), 5.3x (5²), 23.5x (13²)", _region_gains, "paper regions --device gpu",
    ),
    Evaluation(FBFFT, "Table 3", "iterations of training", "1.5x", TRAINING),
    Evaluation(
        FBFFT, "Table 4", "five layers, forward", "1.4x to 7.4x over cuDNN",
        _cudnn, "layers --device gpu",
    ),
    Evaluation(
        FBFFT, "Figures 7 and 8, Table 5", "own FFT over cuFFT, and its passes", "1.4x to 5x",
        "no such passes: transforms of tiles are fused with the layout of products",
        "layers --device gpu",
    ),
    Evaluation(FBFFT, "Figure 9", "decimation", DIAGRAM, "`codelets.py`"),
    Evaluation(TROLL, "Figures 1, 6 and 7", "lowering, its costs, AlexNet", DIAGRAM,
               "`lowered_...`"),
    Evaluation(
        TROLL, "Figures 2 and 3", "batches lowered together", "4.5x on 8 cores",
        _batching, "paper batching",
    ),
    Evaluation(TROLL, "Figure 4", "training on rented machines", "price", TRAINING),
    Evaluation(
        TROLL, "Figure 5", "several GPUs", "4 GPUs: 3.1x",
        "[four GPUs](gpu.md)", "end-to-end",
    ),
    Evaluation(
        TROLL, "Figure 8", "types of lowering, for ratios of maps", "up to 10x, either way",
        _lowering, "paper lowering",
    ),
    Evaluation(
        TROLL, "Figure 9", "part of a batch for the GPU",
        "best with 83 % on the GPU, 1.2x over the GPU alone; the planned share is within 5 %",
        _shared, "paper side-by-side",
    ),
)  # fmt: skip

PAPER_TABLES: dict[str, Callable[[Records], str]] = {
    "evaluations": evaluations,
    **FIGURES,
}
