"""Models of PyTorch on a GPU: znni beside PyTorch, on one window and over a volume.

Each network has random weights and is given as a ``.pt2`` file. On one window, the GPU's time
counts. znni runs a recorded CUDA graph, as its engine does. Over a volume, the time counts from the
input's array to the output's array. MONAI's sliding windows run PyTorch's module.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench.library_networks import export, monai, primus, seeded
from bench.models import Extents, Name, Overlap, Side
from bench.peers.sliding_window import in_windows_of_monai
from bench.record import Row
from bench.session import AccuracyClass, Out, ceilings_with, check_known, machine_with, progress
from bench.session import report_all as report
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.shapes import Vec3
from znni.inference import model_compilation
from znni.inference.inferer import Inferer
from znni.inference.model_compilation import compile_if_it_pays
from znni.inference.planning import fastest, search
from znni.network.geometry import with_window
from znni.network.model_files import measured
from znni.network.network_file import load_network
from znni.network.weights import weights_for
from znni.network.window import Window
from znni.primitives.catalogue import catalogue
from znni.primitives.other_library.on_gpu import PytorchOnGpu

WARM, TIMED = 3, 10
MILLISECONDS = 1e3


def _swin(size: Vec3) -> Any:  # noqa: ARG001 - UNETR needs it
    return monai("SwinUNETR", in_channels=1, out_channels=5, feature_size=48)


def _unetr(size: Vec3) -> Any:
    return monai("UNETR", 1, 5, tuple(size))


NETS: dict[str, Callable[[Vec3], Any]] = {
    "MONAI SwinUNETR": _swin,
    "MONAI UNETR": _unetr,
    "nnU-Net Primus S": lambda size: primus("S", size.x),
}

# PyTorch's ways: the mode of ``torch.compile``; None: layer by layer.
WAYS = {"eager": None, "compiled": "default", "autotuned": "max-autotune-no-cudagraphs"}
KINDS = ("fp32", "tf32", "fp16")

# Each peer's way, and its numbers.
PEERS = {f"{way} {kind}": (WAYS[way], kind) for way, kind in product(WAYS, KINDS)}
Peers = Annotated[list[str] | None, typer.Option("--peer", help="A peer; repeatable.")]


def gpu_models_command(
    net: Name = None,
    size: Extents = 256,
    window: Side = 96,
    overlap: Overlap = 0.5,
    accuracy: AccuracyClass = "tf32",
    peers: Peers = None,
    out: Out = None,
) -> None:
    """Compare znni with PyTorch on a GPU, for models in ``.pt2`` files."""
    check_known("net", net or [], NETS)
    check_known("peer", peers or [], PEERS)
    model_compilation.PAYS_SECONDS = 0.0
    machine = machine_with("gpu", None)
    windows, extents = Window(Vec3.of(window), overlap), Vec3.of(size)
    with TemporaryDirectory() as place:
        rows = (
            [row]
            for name in net or NETS
            for row in _rows(name, Path(place), extents, windows, accuracy, peers or list(PEERS))
        )
        report("gpu-models", rows, [ceilings_with("gpu", machine.host.threads)], out)


def _rows(
    name: str, folder: Path, size: Vec3, window: Window, accuracy: Any, peers: list[str]
) -> Iterator[Row]:
    import torch

    module = seeded(lambda: NETS[name](window.size))
    file = folder / "net.pt2"
    export(module, window.size, file)
    volume = np.random.default_rng(1).standard_normal((1, *size), np.float32)
    first = torch.from_numpy(volume[:, *(slice(extent) for extent in window.size)])[None].cuda()
    with torch.inference_mode():
        exact = copy.deepcopy(module).double().cuda()(first.double())
    about: Row = {
        "name": name,
        "parameters": sum(each.numel() for each in module.parameters()),
        "volume": str(size),
        "window": str(window.size),
        "overlap": window.overlap,
    }
    progress(f"{name}: znni")
    yield about | _ours(file, size, volume, window, accuracy, first, exact)
    module = module.cuda()
    for way in peers:
        progress(f"{name}: PyTorch {way}")
        begun = time.perf_counter()
        compute = recorded(peer(module, way), first)
        ready = time.perf_counter() - begun
        begun = time.perf_counter()
        in_windows_of_monai(
            torch.from_numpy(volume), window.size, window.overlap, compute, device="cuda"
        )
        seconds = time.perf_counter() - begun
        yield about | {
            "engine": f"PyTorch {way}",
            "window_ms": _milliseconds(compute, first),
            "error": _error(compute(first), exact),
            "ready_seconds": ready,
            "seconds": seconds,
        }


def _ours(
    file: Path, size: Vec3, volume: Any, window: Window, accuracy: Any, first: Any, exact: Any
) -> Row:
    import torch

    network = with_window(load_network(file), window)
    choices = Choices(device="gpu", accuracy=accuracy)
    begun = time.perf_counter()
    compile_if_it_pays(network, size, choices)
    ready = time.perf_counter() - begun
    weights = weights_for(network, None, None)
    inferer = Inferer(network, weights, device="gpu", accuracy=accuracy)
    inferer(volume)
    begun = time.perf_counter()
    inferer(volume)
    seconds = time.perf_counter() - begun
    plan = fastest(search(network, size, device="gpu", accuracy=accuracy))[0]
    primitive = catalogue(plan.machine, models=True)[str(plan.steps[0].primitive)]
    if not isinstance(primitive, PytorchOnGpu):
        raise InvalidInput(f"{primitive.name} computes the model, and not PyTorch on the GPU")
    model = replace(network.models[0], window=window.size)
    alone = primitive.build(model, plan.steps[0].shape_in, None)
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        made = alone(cupy.from_dlpack(first))
    stream.synchronize()
    return {
        "engine": f"znni: {primitive.name}",
        "window_ms": MILLISECONDS * measured(model, window.size, primitive.execution).seconds,
        "error": _error(torch.from_dlpack(made), exact),
        "ready_seconds": ready,
        "seconds": seconds,
    }


def peer(module: Any, name: str) -> Callable[[Any], Any]:
    """Return the function with which PyTorch computes windows, in one of ``PEERS``."""
    import torch

    mode, kind = PEERS[name]
    torch.backends.cudnn.benchmark = True
    computes = torch.compile(module, mode=mode) if mode else module

    def compute(x: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = kind != "fp32"
        torch.backends.cudnn.allow_tf32 = kind != "fp32"
        with torch.inference_mode(), torch.autocast("cuda", torch.float16, kind == "fp16"):
            return computes(x).float()

    return compute


def recorded(compute: Callable[[Any], Any], window: Any) -> Callable[[Any], Any]:
    """Return a function that replays what PyTorch launches for a window, as one CUDA graph."""
    import torch

    given = window.clone()
    for _ in range(WARM):
        compute(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        made = compute(given)

    def replay(x: Any) -> Any:
        given.copy_(x)
        graph.replay()
        return made.clone()

    return replay


def _milliseconds(compute: Callable[[Any], Any], x: Any) -> float:
    """Return the median time of a window on the GPU."""
    import torch

    for _ in range(WARM):
        compute(x)
    times: list[float] = []
    for _ in range(TIMED):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        compute(x)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return median(times)


def _error(made: Any, exact: Any) -> float:
    """Return the relative error of an output."""
    return float((made.double() - exact).norm() / exact.norm())
