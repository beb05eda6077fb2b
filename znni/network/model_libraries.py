"""Files of ONNX Runtime and PyTorch: how they are opened, and the function that computes them.

The module imports nothing of znni on Linux, so that its memory is that of the library.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MARGIN = 1.05  # runs differ a little
SPARE = 16 << 20


class Refused(Exception):
    """A file that cannot be computed, with the reason and a remedy."""


def onnx_session(file: str, threads: int) -> Any:
    """Return the session of an ``.onnx`` file on the CPU.

    Raises:
        Refused: ONNX Runtime cannot open it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need no printing
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads would keep znni's own workers from the processors.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library has errors of its own, of all kinds
        # Errors name the file.
        said = first_line(error).replace(f"Load model from {file} failed:", "")
        raise Refused(
            f"onnxruntime {onnxruntime.__version__} cannot open it: {said}; check that the "
            f"file is whole, export it with an opset that it supports, or install a newer "
            f"onnxruntime"
        ) from None


def torch_program(file: str) -> Any:
    """Return the program of a ``.pt2`` file.

    Raises:
        Refused: PyTorch cannot open it.
    """
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # of buffers that nobody writes to
            return torch.export.load(file)
    except Exception as error:  # the library has errors of its own, of all kinds
        raise Refused(
            f"PyTorch {torch.__version__} cannot open it: {first_line(error)}; export it again "
            f"with torch.export.save"
        ) from None


def open_model(runtime: str, file: str, threads: int) -> Callable[[Any], Any]:
    """Return the function that computes (1, f, z, y, x) in float32."""
    if runtime == "onnxruntime":
        session = onnx_session(file, threads)
        name = session.get_inputs()[0].name
        first = session.get_outputs()[0].name
        return lambda x: session.run([first], {name: np.ascontiguousarray(x)})[0]
    import torch

    torch.set_num_threads(threads)
    module = torch_program(file).module()

    def run(x: Any) -> Any:
        with torch.inference_mode():
            made = module(torch.from_numpy(np.ascontiguousarray(x)))
        return (made[0] if isinstance(made, list | tuple) else made).numpy()

    return run


def with_margin(measured: int) -> int:
    """Return the bytes to declare for a measured peak."""
    return int(measured * MARGIN) + SPARE


def resident(kind: str) -> int:
    """Return the resident bytes of this process: ``VmRSS`` now, or ``VmHWM`` at most so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # a system without it: the peak counts from the start of the process
        from znni.core.system import peak_resident_bytes

        return peak_resident_bytes()
    (line,) = (line for line in lines if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, without its full stop."""
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")
