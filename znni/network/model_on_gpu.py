"""A file of PyTorch on a GPU: its function, the cost of a window, and its compiled form.

PyTorch launches its kernels on the caller's stream, so that a recording of a CUDA graph takes them
in. It exchanges arrays by DLPack. The module imports little of znni, as ``model_libraries``.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from znni.network.model_libraries import Refused, first_line, torch_program, with_margin

WARM_RUNS = 3  # the first ones load kernels and choose among cuDNN's
TIMED_RUNS = 10

CANNOT_COMPILE = "cannot compile it"

HALVES = ("float16", "bfloat16")

# Only the GPU computes. A search for the host's vector instructions takes minutes, also when a
# compiled form is loaded: it imports PyTorch in one new process for each kind.
NO_VECTORS = {"cpp.vec_isa_ok": False}


def open_on_gpu(file: str, numbers: str, compiled: str) -> Callable[[Any, Any, int], None]:
    """Return the function that computes an input (1, f, z, y, x) into an output, on a stream.

    Args:
        file: the ``.pt2`` file.
        numbers: the numbers that are multiplied.
        compiled: the file of its compiled form; empty to compute it layer by layer.

    Returns:
        ``run(x, y, stream)``: arrays on the current GPU, and the address of a stream.
    """
    import torch

    compute = _opened(file, numbers, compiled)

    def run(x: Any, y: Any, stream: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.from_dlpack(y).copy_(compute(torch.from_dlpack(x)))

    return run


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
    compute = _opened(file, numbers, compiled)
    for _ in range(WARM_RUNS):
        y = compute(x)
    taken = max(free - free_bytes(), torch.cuda.max_memory_reserved())
    seconds = _seconds(compute, x)
    error = 0.0
    if numbers != "float32":
        exact = _opened(file, "float32", "")(x).double()
        error = float((y.double() - exact).norm() / exact.norm())
    return {"seconds": seconds, "gpu_memory": with_margin(taken), "error": error}, y.shape


def compile_model(file: str, numbers: str, x: Any, compiled: str) -> None:
    """Compile a model for windows of one size, into a file.

    Raises:
        Refused: PyTorch cannot compile it.
    """
    import torch

    _multiply(numbers)
    module, x = _with_numbers(_module(file), numbers), torch.from_numpy(x).cuda()
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.export.export(module, (x,))
            torch._inductor.aoti_compile_and_package(
                program, package_path=compiled, inductor_configs=NO_VECTORS
            )
    except Exception as error:  # the compilers have errors of their own, of all kinds
        raise Refused(
            f"PyTorch {torch.__version__} {CANNOT_COMPILE}: {first_line(error)}"
        ) from None


def _opened(file: str, numbers: str, compiled: str) -> Callable[[Any], Any]:
    """Return the function that computes an input on the GPU."""
    import torch

    if compiled:
        from torch._inductor import config

        # PyTorch warns about its own code.
        with config.patch(NO_VECTORS), warnings.catch_warnings(action="ignore"):
            # A run of several threads would ask for events, which a recording forbids.
            package = torch._inductor.aoti_load_package(compiled, run_single_threaded=True)

        def run_compiled(x: Any) -> Any:
            _multiply(numbers)
            made = package(x.contiguous())
            return made[0] if isinstance(made, list | tuple) else made

        return run_compiled
    module = _with_numbers(_module(file), numbers)

    def run(x: Any) -> Any:
        _multiply(numbers)
        with torch.inference_mode():
            return module(x.contiguous())

    return run


def _module(file: str) -> Any:
    """Return the module of a file, on the current GPU."""
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(torch_program(file), "cuda").module()


def _with_numbers(module: Any, numbers: str) -> Any:
    """Return a module that computes one float32 tensor with products of some numbers."""
    import torch

    half = getattr(torch, numbers) if numbers in HALVES else None

    class WithNumbers(torch.nn.Module):  # type: ignore[misc] # PyTorch is not read
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            if half is None:
                made = self.module(x)
            else:  # a recording cannot keep converted weights between its runs
                with torch.autocast("cuda", half, cache_enabled=False):
                    made = self.module(x)
            return (made[0] if isinstance(made, list | tuple) else made).float()

    return WithNumbers()


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
