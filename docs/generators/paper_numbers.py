"""Numbers of ours beside those of five papers, made from records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby, product
from operator import itemgetter
from statistics import geometric_mean

from paper_figures import (
    MACHINE_PLANS,
    REGIONS,
    SIZES,
    STRATEGIES,
    Records,
    gain_of_share,
    layers_on_gpu,
    shares_of_devices,
)

from bench.paper.divisions import ALL, MIB, WHOLE, Engine, front_of, own_seconds
from bench.paper.engines import NETWORKS as PLANE_NETWORKS
from bench.paper.planes import CUDNN, FBFFT
from bench.paper.published import NETWORKS, published
from bench.record import Record, Row
from znni.core.option_types import ACCURACIES
from znni.core.text import counted, in_units

# Records of the commands, which the GPU's machine wrote in one session.
PRUNED = {"CPU": "paper-pruned-ffts-cpu.json", "GPU": "paper-pruned-ffts-gpu.json"}
SUBSAMPLINGS = "paper-subsamplings-h200.json"
LOWERING, BATCHING = "paper-lowering-16-cores.json", "paper-batching-16-cores.json"
SPEEDUPS = "paper-fft-speedups.json"
CUDNN_LAYER, SEVERAL_GPUS = "gpu-layers-hidden-3.json", "end-to-end-h200-x4.json"
PIECES, SHARES = "micro-batches-whole-image-and-lowered.json", "shares-measured.json"
ENGINES, CURVES = "paper-micro-batches-h200.json", "paper-engine-curves-h200.json"
USED = (
    *PRUNED.values(), SUBSAMPLINGS, REGIONS, LOWERING, BATCHING, SPEEDUPS, SIZES, *STRATEGIES,
    CUDNN_LAYER, PIECES, SHARES, ENGINES, CURVES, MACHINE_PLANS, SEVERAL_GPUS,
)  # fmt: skip

FOUR_SOCKETS = "4 x Intel Xeon E7-8890 v3"
SIZES_LINK = "[for each size](#throughput-over-the-size-of-patches)"


def planes(records: Records) -> dict[str, Record]:
    """Return the records of the layers that cuDNN's and fbfft's papers measure."""
    return {name: it for name, it in records.items() if name.startswith("paper-planes")}


def layers_of_cudnn(records: Records) -> str:
    """Return gains of the fastest family, and those of the fastest primitive for volumes."""
    rows = [row for row in records[CUDNN_LAYER].rows if row.get("seconds")]
    ours = [row for row in rows if row.get("accuracy", 1.0) <= ACCURACIES["float32"]]
    theirs = [row for row in rows if row["name"].startswith("torch_fp32")]
    gain = max(map(_rate, ours)) / max(map(_rate, theirs))
    volumes = f"volumes with 80 maps and kernel 3³, NVIDIA H200: {gain:.1f}x of cuDNN"
    return f"fastest family: {_over_planes(records, _over_baseline, CUDNN)}; {volumes}"


def layers_of_fbfft(records: Records) -> str:
    """Return gains of tiled FFT for the layers of planes."""
    return f"tiled FFT: {_over_planes(records, _ffts_over_baseline, FBFFT)}"


def shares_of_peak(records: Records) -> str:
    """Return the shares of peak arithmetic of direct convolution and of cuDNN."""
    return _over_planes(records, _shares, CUDNN)


def _over_planes(records: Records, said: Callable[[list[Row]], str], figure: str) -> str:
    """Return a text about a paper's layers for each machine that measured them."""
    texts = []
    for record in planes(records).values():
        machine, (ceilings,) = record.about["machine"], record.about["ceilings"]
        here = f"{machine['processor']}, {counted(ceilings.get('threads', 0), 'thread')}"
        rows = [row for row in record.rows if figure in row["figure"]]
        texts.append(f"{said(rows)} ({ceilings.get('device', here)})")
    return ", ".join(texts)


def _range(values: Iterable[float], form: str, unit: str = "") -> str:
    """Return the least and the largest value."""
    least, *_, most = sorted(values)
    return f"{least:{form}}{unit} to {most:{form}}{unit}"


def _over_baseline(rows: list[Row]) -> str:
    fastest = [max(it["gain"] for it in own) for _, own in groupby(rows, itemgetter("case"))]
    return f"{_range(fastest, '.1f', 'x')} of {_baseline(rows)}"


def _ffts_over_baseline(rows: list[Row]) -> str:
    gains = (row["gain"] for row in rows if row["family"] == "tiled FFT")
    return f"{_range(gains, '.1f', 'x')} of {_baseline(rows)}"


def _baseline(rows: list[Row]) -> str:
    """Return the family that all others are compared with."""
    families = {row["family"] for row in rows}
    return "cuDNN" if "cuDNN" in families else "direct convolution"


def _shares(rows: list[Row]) -> str:
    families = sorted({row["family"] for row in rows} & {"direct", "cuDNN"})
    return ", ".join(
        f"{name} {_range((it['share_of_peak'] for it in rows if it['family'] == name), '.0%')}"
        for name in families
    )


def four_sockets(records: Records) -> str:
    """Return the predicted speeds of the paper's host."""
    rates = {
        row["network"]: row["predicted_voxels_per_s"]
        for row in records[MACHINE_PLANS].rows
        if row["processor"] == FOUR_SOCKETS
    }
    said = ", ".join(f"{rates[name] / 1e6:.1f}" for name in NETWORKS)
    return f"no such machine is at hand; predicted for it: {said} million voxels/s"


def several_gpus(records: Records) -> str:
    """Return how many times as fast as one GPU four are."""
    rates = {
        (row["network"], row["gpus"]): row["voxels_per_s"] for row in records[SEVERAL_GPUS].rows
    }
    gains = ", ".join(
        f"{rates[name, 4] / rates[name, 1]:.1f}x ({name})" for name in ("n337", "n537")
    )
    return f"4 GPUs: {gains}, from file to file"


def pruned(records: Records) -> str:
    """Return gains of pruned transforms of kernels on each device."""
    said = []
    for device, name in PRUNED.items():
        gains = [row["gain"] for row in records[name].rows if row["name"] == "pruned"]
        said.append(f"{device} {geometric_mean(gains):.1f}x ({min(gains):.1f} to {max(gains):.1f})")
    return ", ".join(said)


def operations(records: Records) -> str:
    """Return the number of inputs with the fewest operations, for each network."""
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


def growth(records: Records) -> str:
    """Return gains of large patches over small ones."""
    rates = {row["case"]: row["predicted_voxels_per_s"] for row in records[SIZES].rows}
    said = []
    for strategy in ("CPU-only", "GPU-only"):
        small, large = (
            [rates[f"{name}, {strategy}, output {extent}^3"] for name in NETWORKS]
            for extent in (64, 256)
        )
        gains = (most / least for least, most in zip(small, large, strict=True))
        said.append(f"{strategy} {', '.join(f'{gain:.1f}x' for gain in gains)}")
    return f"256³ over 64³: {'; '.join(said)} (predicted); {SIZES_LINK}"


def over_memory(records: Records) -> str:
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


def layers_alike(records: Records) -> str:
    """Return how many layers have the paper's kind of primitive."""
    alike = [theirs == ours for _, _, theirs, ours in layers_on_gpu(records)]
    return (
        f"{sum(alike)} of {len(alike)} layers have the paper's kind of primitive, "
        "[planned for its GPU](#the-primitives-of-table-iv)"
    )


def shared(records: Records) -> str:
    """Return the best gain of a host beside a GPU, for each machine."""
    best: dict[str, list[float]] = {}
    for case, rows in shares_of_devices(records).items():
        gains = {row["items_on_host"]: gain_of_share(row) for row in rows}
        measured = any("gain" in row for row in rows)
        machine = f"{case.partition(':')[0]} ({'measured' if measured else 'predicted'})"
        best.setdefault(machine, []).append(max(gains.values()))
    said = (f"{name} up to {max(found):.2f}x" for name, found in best.items())
    return f"best share over the GPU alone: {', '.join(said)}; [shares](#cpu-and-gpu-in-one-layer)"


def strategies(records: Records) -> str:
    """Return the fastest strategy of each network, with its speed."""
    rows = [row for name in STRATEGIES for row in records[name].rows if row.get("voxels_per_s")]
    said = []
    for network in NETWORKS:
        best = max(
            (row for row in rows if row["network"] == network),
            key=lambda row: float(row["voxels_per_s"]),
        )
        said.append(f"{network} {best['voxels_per_s'] / 1e6:.0f} ({best['strategy']})")
    return ", ".join(said) + " million voxels/s"


def published_best(strategy: str) -> str:
    """Return the published speeds of a strategy."""
    rates = [(published(name, strategy) or 0) / 1e6 for name in NETWORKS]
    return ", ".join(f"{rate:.2f}" for rate in rates) + " million voxels/s"


def subsamplings(records: Records) -> str:
    """Return gains of fragments over all subsamplings."""
    rows = [row for row in records[SUBSAMPLINGS].rows if row["name"] == "fragments"]
    return "fragments " + ", ".join(
        f"{row['gain']:.1f}x ({row['case'].partition(',')[0]})" for row in rows
    )


def region_gains(records: Records) -> str:
    """Return the largest gain over cuDNN for each kernel."""
    gains: dict[int, float] = {}
    for row in records[REGIONS].rows:
        if row.get("gain"):
            gains[row["kernel"]] = max(row["gain"], gains.get(row["kernel"], 0.0))
    return "up to " + ", ".join(f"{gain:.1f}x ({k}³)" for k, gain in sorted(gains.items()))


def lowering(records: Records) -> str:
    """Return gains of the third type of lowering over the first."""
    gains = [
        row["gain"] for row in records[LOWERING].rows if row["name"] == "lowered_expensive_lifting"
    ]
    return f"type 3 over type 1: {min(gains):.1f}x to {max(gains):.1f}x"


def batching(records: Records) -> str:
    """Return gains of batches over single images."""
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


def _rate(row: Row) -> float:
    return float(row["voxels"]) / float(row["seconds"])


def _pieces(records: Records) -> str:
    rows = records[PIECES].rows
    gains = [row["gain"] for row in rows if row.get("gain") and row["division"] == "all"]
    return f"up to {max(gains):.2f}x over undivided, on the CPU"


def one_layer(records: Records) -> str:
    """Return gains of pieces, for the paper's layer by cuDNN, and for layers on the CPU."""
    case = PLANE_NETWORKS["AlexNet"]
    second = next(iter(case.calls))
    curve = {
        row["images"]: list(map(Engine, row["all_seconds"], row["all_workspaces"]))
        for row in records[CURVES].rows
        if row | second.about == row
    }
    whole, pieces = (
        own_seconds(front_of(curve, case.batch, division), 64 * MIB) for division in (WHOLE, ALL)
    )
    return f"the same layer by cuDNN {whole / pieces:.2f}x; znni, {_pieces(records)}"


def engines(records: Records) -> str:
    """Return the gain of pieces of batches for cuDNN's engines."""
    gain = max(row["gain"] for row in records[ENGINES].rows)
    return f"pieces over undivided, forward: at most {gain:.2f}x"


def workspaces(records: Records) -> str:
    """Return the workspace of engines, and what pieces save on the CPU, as the paper compares."""
    most = max(max(row["all_workspaces"]) for row in records[CURVES].rows)
    taken = {
        (row["kernel"], row["limit_mib"], row["division"]): row["workspace_mib"]
        for row in records[PIECES].rows
    }
    saved = [
        taken[kernel, 512, "none"] / own
        for (kernel, limit, division), own in taken.items()
        if (limit, division) == (64, "power-of-two")
    ]
    return (
        f"cuDNN's engines take {in_units(most)} of workspace; on the CPU, pieces take "
        f"{_range(saved, '.1f', 'x')} less ([memory](memory.md))"
    )


def joint(records: Records) -> str:
    """Return gains of memory that is divided jointly."""
    rows = records[SHARES].rows
    gains = [row["gain"] for row in rows if row.get("gain") and row["shares"] == "equal"]
    seconds = {(row["case"], row["name"]): row["seconds"] for row in records[ENGINES].rows}
    by_engines = max(
        own / seconds[case, name.replace("each its own", "shared out")]
        for (case, name), own in seconds.items()
    )
    return (
        f"joint over equal shares: cuDNN's engines {by_engines:.2f}x; up to {max(gains):.2f}x on "
        "the CPU"
    )
