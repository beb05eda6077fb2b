"""A file of PyTorch on a GPU: its function, the cost of a window, and its compiled form.

PyTorch launches its kernels on the caller's stream, so that a recording of a CUDA graph takes them
in. It exchanges arrays by DLPack. The module imports little of znni, as ``model_libraries``.

``torch.compile`` makes the compiled form. It keeps its code in a folder, from which a later process
takes it in seconds.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from znni.network.model_libraries import Refused, first_line, torch_program, with_margin

WARM_RUNS = 3  # the first ones load kernels and choose among cuDNN's
TIMED_RUNS = 10

CANNOT_COMPILE = "cannot compile it"

HALVES = ("float16", "bfloat16")


def open_on_gpu(
    file: str, numbers: str, shape: Sequence[int], compiled: str
) -> Callable[[Any, Any, int], None]:
    """Return the function that computes an input (1, f, z, y, x) into an output, on a stream.

    Args:
        file: the ``.pt2`` file.
        numbers: the numbers that are multiplied.
        shape: the input's shape.
        compiled: the folder of its compiled form; empty to compute it layer by layer.

    Returns:
        ``run(x, y, stream)``: arrays on the current GPU, and the address of a stream.

    Raises:
        Refused: PyTorch cannot compile it.
    """
    import torch

    compute = opened(file, numbers, torch.zeros(*shape, device="cuda"), compiled)

    def run(x: Any, y: Any, stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.from_dlpack(y).copy_(compute(torch.from_dlpack(x)))

    return run


def opened(
    file: str, numbers: str, x: Any, compiled: str, processes: int = 1
) -> Callable[[Any], Any]:
    """Return the function that computes inputs like ``x``, on its device.

    Args:
        file: the ``.pt2`` file.
        numbers: the numbers that are multiplied.
        x: an input (1, f, z, y, x).
        compiled: the folder of its compiled form; empty to compute it layer by layer.
        processes: the processes that compile what the folder lacks; 0: PyTorch decides. They take
            memory, so a run has one.

    Raises:
        Refused: PyTorch cannot compile it.
    """
    import torch
    from torch.export.passes import move_to_device_pass

    computes = move_to_device_pass(torch_program(file), x.device).module()
    half = getattr(torch, numbers) if numbers in HALVES else None
    # A recording cannot keep converted weights between its runs.
    halves = torch.autocast(x.device.type, half, enabled=half is not None, cache_enabled=False)

    def run(x: Any) -> Any:
        _multiply(numbers)
        x = x.contiguous()  # a copy within inference mode would be another kind of tensor
        with torch.inference_mode(), halves:
            made = computes(x)
            return (made[0] if isinstance(made, list | tuple) else made).float()

    if compiled:
        with _compiling(Path(compiled), processes):
            # One graph, so that PyTorch computes no part layer by layer without a word.
            computes = torch.compile(computes, dynamic=False, fullgraph=True)
            run(x)
        torch.cuda.empty_cache()  # what the caller's stream takes comes on top
    return run


@contextmanager
def _compiling(folder: Path, processes: int) -> Iterator[None]:
    """Let PyTorch compile within a ``with`` block, and keep its code in a folder.

    Raises:
        Refused: PyTorch cannot compile.
    """
    import torch
    from torch._inductor import config

    places = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder / "triton"}
    before = {name: os.environ.get(name) for name in places}
    os.environ.update({name: str(place) for name, place in places.items()})
    settings = {"fx_graph_cache": True, "compile_threads": processes or config.compile_threads}
    try:
        # PyTorch warns about its own code.
        with config.patch(settings), warnings.catch_warnings(action="ignore"):
            yield
    except Exception as error:  # the compilers have errors of their own, of all kinds
        raise Refused(
            f"PyTorch {torch.__version__} {CANNOT_COMPILE}: {first_line(error)}"
        ) from None
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_gpu(name: str) -> None:
    """Check that PyTorch computes on a GPU."""
    import torch

    if not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda} and finds no GPU"
        why = built if torch.version.cuda else "is built without CUDA"
        raise Refused(
            f"PyTorch {torch.__version__} computes on the CPU alone, because it {why}; install "
            f"PyTorch for this GPU's CUDA"
        )
    if torch.cuda.get_device_name() != name:
        raise Refused(
            f"a window's time is measured on the GPU itself, and this machine has a "
            f"{torch.cuda.get_device_name()}; plan on a machine with a {name}"
        )


def free_bytes() -> int:
    """Return the bytes of the current GPU that nobody takes."""
    import torch

    torch.cuda.synchronize()
    free: int = torch.cuda.mem_get_info()[0]
    return free


def measured(
    file: str, numbers: str, x: Any, compiled: str, free: int
) -> tuple[dict[str, Any], Sequence[int]]:
    """Return the cost of a window, and the output's shape.

    The cost has seconds, the bytes on the GPU, and the relative error against float32.

    The seconds are measured on a recorded CUDA graph, as the engine runs it.
    """
    import torch

    x = torch.from_numpy(x).cuda()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    compute = opened(file, numbers, x, compiled)
    stream = torch.cuda.Stream()  # a run has one beside the default one, too
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_RUNS):
            y = compute(x)
    taken = max(free - free_bytes(), torch.cuda.max_memory_reserved())
    seconds = _seconds(compute, x)
    error = 0.0
    if numbers != "float32":
        exact = opened(file, "float32", x, "")(x).double()
        error = float((y.double() - exact).norm() / exact.norm())
    return {"seconds": seconds, "gpu_memory": with_margin(taken), "error": error}, y.shape


def _multiply(numbers: str) -> None:
    """Let PyTorch round the factors of float32 products to tf32, or forbid it."""
    import torch

    allowed = numbers != "float32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def _seconds(compute: Callable[[Any], Any], x: Any) -> float:
    """Return the median seconds of a window, from a recording of its kernels.

    Raises:
        Refused: the kernels cannot be recorded.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):  # as CuPy records
            compute(x)
    except RuntimeError as error:
        raise Refused(
            f"its kernels cannot be recorded as a CUDA graph ({first_line(error)})"
        ) from None
    times: list[float] = []
    for _ in range(TIMED_RUNS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return median(times)
