"""PyTorch, ONNX Runtime and OpenVINO on one whole window of a network, each ready to be timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bench.peers.torch_settings import CPU_KINDS
from znni.network.network import Network
from znni.network.weights import Float32, Weights

if TYPE_CHECKING:
    from bench.peers.torch_windows import TorchWindows

# A function that computes a window (f, z, y, x) and returns its output (f', z', y', x').
Compute: TypeAlias = Callable[[Float32], Float32]


def peers(
    network: Network, weights: Weights, window: Float32, threads: int, folder: Path
) -> Iterator[tuple[str, Callable[[], Compute]]]:
    """Yield every peer that is installed, by name, with a function that makes it ready.

    Args:
        network: the network.
        weights: its weights.
        window: an input, whose shape the peers are prepared for.
        threads: the threads of each peer.
        folder: a folder for the exported model.
    """
    import torch

    from bench.peers.torch_windows import torch_ways

    torch.set_num_threads(threads)
    for name, make in torch_ways(network, weights, CPU_KINDS, "cpu").items():
        yield name, _then_output(make)
    if find_spec("onnxruntime"):
        yield "onnxruntime fp32", _later(_onnxruntime, network, weights, window, threads, folder)
    if find_spec("openvino"):
        for kind, precision in (("fp32", "f32"), ("bf16", "bf16")):
            yield (
                f"openvino {kind}",
                _later(_openvino, network, weights, window, threads, precision),
            )


def _later(make: Callable[..., Compute], *arguments: Any) -> Callable[[], Compute]:
    return lambda: make(*arguments)


def _then_output(make: Callable[[], TorchWindows]) -> Callable[[], Compute]:
    return lambda: make().output


def exact_output(
    network: Network, weights: Weights, x: Float32, device: str = "cpu"
) -> np.ndarray[Any, Any]:
    """Return the float64 output of a window, by PyTorch on a device."""
    import torch

    from bench.peers.torch_graph import TorchGraph

    with torch.inference_mode():
        graph = TorchGraph(network, weights, torch.float64, by_taps=True).to(device)
        made = graph(torch.from_numpy(x)[None].to(device).double())
    found: np.ndarray[Any, Any] = made[0].cpu().numpy()
    return found


def _onnxruntime(
    network: Network, weights: Weights, window: Float32, threads: int, folder: Path
) -> Compute:
    import onnxruntime
    import torch

    from bench.peers.torch_graph import TorchGraph

    path = folder / f"{network.name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter needs no further package
        torch.onnx.export(
            TorchGraph(network, weights), (torch.from_numpy(window)[None],), str(path),
            input_names=["x"], dynamo=False,
        )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def compute(x: Float32) -> Float32:
        made: Float32 = session.run(None, {"x": x[None]})[0][0]
        return made

    return compute


def _openvino(
    network: Network, weights: Weights, window: Float32, threads: int, precision: str
) -> Compute:
    import openvino
    import torch

    from bench.peers.torch_graph import TorchGraph

    model = openvino.convert_model(
        TorchGraph(network, weights), example_input=torch.from_numpy(window)[None]
    )
    model.reshape([1, *window.shape])
    compiled = openvino.Core().compile_model(
        model,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    request = compiled.create_infer_request()

    def compute(x: Float32) -> Float32:
        made: Float32 = request.infer([x[None]])[0][0]
        return made.copy()

    return compute
