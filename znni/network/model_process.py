"""The process that opens a file of another library: ``python -m znni.network.model_process``.

It imports nothing of znni, so that its memory is that of the library.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

REFUSED = 3  # the exit status after an error that the last line of stderr explains
AXES = 5  # of (n, f, z, y, x)
MARGIN = 1.05  # runs differ a little
SPARE = 16 << 20


class Refused(Exception):
    """A file that cannot be computed, with the reason and a remedy."""


def _onnx_session(file: str, threads: int) -> Any:
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
        said = _line(error).replace(f"Load model from {file} failed:", "")  # errors name the file
        raise Refused(
            f"onnxruntime {onnxruntime.__version__} cannot open it: {said}; check that the "
            f"file is whole, export it with an opset that it supports, or install a newer "
            f"onnxruntime"
        ) from None


def _torch_program(file: str) -> Any:
    import torch

    try:
        return torch.export.load(file)
    except Exception as error:  # the library has errors of its own, of all kinds
        raise Refused(
            f"PyTorch {torch.__version__} cannot open it: {_line(error)}; export it again with "
            f"torch.export.save"
        ) from None


def open_model(runtime: str, file: str, threads: int) -> Callable[[Any], Any]:
    """Return the function that computes (1, f, z, y, x) in float32."""
    if runtime == "onnxruntime":
        session = _onnx_session(file, threads)
        name = session.get_inputs()[0].name
        first = session.get_outputs()[0].name
        return lambda x: session.run([first], {name: np.ascontiguousarray(x)})[0]
    import torch

    torch.set_num_threads(threads)
    module = _torch_program(file).module()

    def run(x: Any) -> Any:
        with torch.inference_mode():
            made = module(torch.from_numpy(np.ascontiguousarray(x)))
        return (made[0] if isinstance(made, list | tuple) else made).numpy()

    return run


def _described(runtime: str, file: str) -> dict[str, Any]:
    if runtime == "onnxruntime":
        session = _onnx_session(file, 1)
        inputs, outputs = session.get_inputs(), session.get_outputs()
        names = [each.name for each in inputs]
        if any(each.type != "tensor(float)" for each in inputs[:1]):
            raise Refused(f"takes {inputs[0].type}; export it in float32")
        taken, given = list(inputs[0].shape), list(outputs[0].shape)
        count = len(outputs)
    else:
        program = _torch_program(file)
        names = list(program.graph_signature.user_inputs)
        ends = list(program.graph_signature.user_outputs)
        shapes = {
            node.name: list(node.meta["val"].shape)
            for node in program.graph.nodes
            if hasattr(node.meta.get("val"), "shape")
        }
        taken, given = shapes.get(names[0], []), shapes.get(ends[0], [])
        count = len(ends)
    if len(names) != 1:
        raise Refused(f"has inputs {names}; export a network with one")
    if count != 1:
        raise Refused(
            f"has {count} outputs; export it with one, of full resolution (no deep supervision)"
        )
    if len(taken) != AXES or len(given) not in (0, AXES):
        raise Refused(f"takes {taken} and gives {given}; export it for (1, f, z, y, x)")
    numbers = [size if isinstance(size, int) and size > 0 else None for size in taken]
    if numbers[0] not in (None, 1):
        raise Refused(f"takes {numbers[0]} windows at a time; export it for (1, f, z, y, x)")
    fixed = None if None in numbers[2:] else numbers[2:]
    if fixed is None and any(numbers[2:]):
        raise Refused(
            f"takes an input of {taken}, of which some extents are free; fix all three, or none"
        )
    features = given[1] if len(given) == AXES and isinstance(given[1], int) else None
    return {"maps": numbers[1], "features": features, "fixed": fixed}


def _measured(runtime: str, file: str, threads: int, maps: int, size: list[int]) -> dict[str, Any]:
    before = _resident("VmRSS")
    run = open_model(runtime, file, threads)
    x = np.random.default_rng(0).standard_normal((1, maps, *size), np.float32)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        try:
            made = run(x)
        except Exception as error:  # the library has errors of its own, of all kinds
            window = "x".join(map(str, size))
            raise Refused(
                f"{runtime} cannot compute a window of {window}: {_line(error)}; give the extents "
                f"that it was trained on as the window"
            ) from None
        seconds.append(time.perf_counter() - begun)
        if sum(seconds) > 60:
            break
    memory = int((_resident("VmHWM") - before) * MARGIN) + SPARE
    return {"seconds": min(seconds), "memory": memory, "shape": list(made.shape)}


def _resident(kind: str) -> int:
    """Return the resident bytes of this process: ``VmRSS`` now, or ``VmHWM`` at most so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # a system without it: the peak counts from the start of the process
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024  # macOS counts in bytes
    (line,) = (line for line in lines if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


def _line(error: Exception) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__).rstrip(".")


def main(arguments: list[str]) -> int:
    """Answer in one line of JSON; return the exit status."""
    runtime, file, asked, *numbers = arguments
    try:
        if asked == "describe":
            answer = _described(runtime, file)
        else:
            threads, maps, *size = map(int, numbers)
            answer = _measured(runtime, file, threads, maps, size)
    except Refused as error:
        print(error, file=sys.stderr)
        return REFUSED
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
