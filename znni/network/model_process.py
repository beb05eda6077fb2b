"""The process that opens a file of another library: ``python -m znni.network.model_process``.

It imports little of znni, so that its memory is that of the library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from znni.network import model_on_gpu
from znni.network.model_libraries import (
    Refused,
    first_line,
    onnx_session,
    open_model,
    resident,
    torch_program,
    with_margin,
)

REFUSED = 3  # the exit status after an error that the last line of stderr explains
AXES = 5  # of (n, f, z, y, x)
Costs: TypeAlias = dict[str, tuple[dict[str, Any], Sequence[int]]]

MOST_RUNS, MOST_SECONDS = 3, 60.0  # of a measurement


def _described(runtime: str, file: str) -> dict[str, Any]:
    if runtime == "onnxruntime":
        session = onnx_session(file, 1)
        inputs, outputs = session.get_inputs(), session.get_outputs()
        names = [each.name for each in inputs]
        if any(each.type != "tensor(float)" for each in inputs[:1]):
            raise Refused(f"takes {inputs[0].type}; export it in float32")
        taken, given = list(inputs[0].shape), list(outputs[0].shape)
        count = len(outputs)
    else:
        program = torch_program(file)
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


def _measured(runtime: str, file: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the cost of a window for each kind of numbers, and the output's shape."""
    before = resident("VmRSS")
    x = _window(asked)
    try:
        found = _on_gpu(file, asked, x) if asked["gpu"] else _on_cpu(runtime, file, asked, x)
    except Refused:
        raise
    except Exception as error:  # the library has errors of its own, of all kinds
        window = "x".join(map(str, asked["size"]))
        raise Refused(
            f"{runtime} cannot compute a window of {window}: {first_line(error)}; give the extents "
            f"that it was trained on as the window"
        ) from None
    memory = with_margin(resident("VmHWM") - before)
    windows = {numbers: {**cost, "memory": memory} for numbers, (cost, _) in found.items()}
    ((_, shape), *_) = found.values()
    return {"windows": windows, "shape": list(shape)}


def _on_cpu(runtime: str, file: str, asked: dict[str, Any], x: Any) -> Costs:
    run = open_model(runtime, file, asked["threads"])
    seconds: list[float] = []
    while len(seconds) < MOST_RUNS and sum(seconds) < MOST_SECONDS:
        begun = time.perf_counter()
        made = run(x)
        seconds.append(time.perf_counter() - begun)
    return {"float32": ({"seconds": min(seconds)}, made.shape)}


def _on_gpu(file: str, asked: dict[str, Any], x: Any) -> Costs:
    model_on_gpu.check_gpu(asked["gpu"])
    free = model_on_gpu.free_bytes()
    return {
        numbers: model_on_gpu.measured(file, numbers, x, asked["compiled"], free)
        for numbers in asked["numbers"]
    }


def _compiled(file: str, asked: dict[str, Any]) -> dict[str, Any]:
    model_on_gpu.check_gpu(asked["gpu"])
    import torch

    x = torch.from_numpy(_window(asked)).cuda()
    model_on_gpu.opened(file, asked["numbers"], x, asked["compiled"], processes=0)
    return {}


def _window(asked: dict[str, Any]) -> Any:
    """Return a window of random values."""
    shape = (1, asked["maps"], *asked["size"])
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def main(arguments: list[str]) -> int:
    """Answer in one line of JSON; return the exit status."""
    runtime, file, asked, *numbers = arguments
    try:
        if asked == "describe":
            answer = _described(runtime, file)
        elif asked == "measure":
            answer = _measured(runtime, file, json.loads(numbers[0]))
        else:
            answer = _compiled(file, json.loads(numbers[0]))
    except Refused as error:
        print(error, file=sys.stderr)
        return REFUSED
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a library's own end may fail, when the answer is there
