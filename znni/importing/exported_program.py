"""Exported programs of PyTorch (``.pt2``) as steps."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from znni.core.errors import InvalidInput
from znni.importing import checks
from znni.importing.graph import Operation, in_order
from znni.importing.pt2_archive import EXPORT_AGAIN, Archive, Node, Tensor
from znni.importing.steps import Found, Original, Step
from znni.network.layers import Activation
from znni.network.weights import Float32

PLAIN: Mapping[str, Activation] = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh"}


def read_exported_program(file: Path | io.BytesIO) -> Found:
    """Return the network of a ``.pt2`` file.

    Raises:
        InvalidInput: the file is no exported program, or has an operator that cannot be
            represented.
    """
    try:
        with ZipFile(file) as archive:
            return _found(Archive(archive))
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        problem = f"cannot be read as an exported program: {error}"
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        problem = f"is not laid out as an exported program: {type(error).__name__} {error}"
    raise InvalidInput(f"{problem}; is the file whole? {EXPORT_AGAIN}")


def of_live_program(program: Any) -> Found:
    """Return the network of a ``torch.export.ExportedProgram``."""
    import torch

    saved = io.BytesIO()
    torch.export.save(program, saved)
    return read_exported_program(saved)


def _found(archive: Archive) -> Found:
    """Return the network of an archive, and a way to run it."""
    start, end = archive.ends()
    size = archive.input_size()
    chain = in_order(archive.operations(), start, end)
    steps = tuple(step for operation in chain for step in _steps(operation))
    if find_spec("torch") is None:
        return Found(steps, "PyTorch, which would run it, is not installed")
    nodes = [operation.details for operation in chain]
    return Found(steps, Original("PyTorch", _runner(nodes), size))


def _steps(operation: Operation[Node]) -> Iterator[Step]:
    """Yield one operator as a step, or nothing if it does nothing."""
    origin, node = operation.origin, operation.details
    given = node.arguments.get
    match node.operator.removesuffix("_"):
        case "conv3d":
            yield checks.convolution(
                origin,
                given("weight"),
                given("bias"),
                stride=given("stride", 1),
                padding=given("padding", 0),
                dilation=given("dilation", 1),
                groups=given("groups", 1),
            )
        case "max_pool3d":
            yield checks.max_pooling(
                origin,
                given("kernel_size"),
                stride=given("stride"),
                padding=given("padding", 0),
                dilation=given("dilation", 1),
                ceil_mode=given("ceil_mode", False),
            )
        case "batch_norm":
            if given("training"):
                checks.refuse(origin, "was exported in training mode; call eval() before exporting")
            yield checks.batch_norm(
                origin,
                given("weight"),
                given("bias"),
                given("running_mean"),
                given("running_var"),
                given("eps"),
            )
        case "softmax" if given("dtype") is None:
            yield checks.softmax(origin, given("dim"))
        case "leaky_relu":
            yield checks.nonlinearity(origin, "leaky_relu", given("negative_slope"))
        case "elu" if given("scale", 1) == given("input_scale", 1) == 1:
            yield checks.nonlinearity(origin, "elu", given("alpha"))
        case "relu" | "sigmoid" | "tanh" as name:
            yield checks.nonlinearity(origin, PLAIN[name])
        case "dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout":
            if given("train"):
                checks.refuse(origin, "was exported in training mode; call eval() before exporting")
        case _:
            checks.unknown(origin)


def _runner(nodes: list[Node]) -> Callable[[Float32], Float32]:
    """Return a function by which PyTorch runs the nodes in order, with their own arguments."""

    def run(x: Float32) -> Float32:
        import torch

        value = torch.from_numpy(x)[None]
        with torch.inference_mode():
            for node in nodes:
                operator = getattr(getattr(torch.ops.aten, node.operator), node.overload)
                value = operator(
                    **{
                        name: value if isinstance(argument, Tensor) else _as_torch(argument)
                        for name, argument in node.arguments.items()
                    }
                )
        return np.asarray(value[0].numpy(), np.float32)

    return run


def _as_torch(argument: Any) -> Any:
    """Return an operator's argument, with arrays as float32 tensors."""
    import torch

    if not isinstance(argument, np.ndarray):
        return argument
    return torch.from_numpy(np.array(argument, np.float32))
