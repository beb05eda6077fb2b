"""Live ``torch.nn.Sequential`` modules as steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from znni.importing import checks
from znni.importing.steps import Found, Original, Step
from znni.network.layers import Activation
from znni.network.weights import Float32

EXPORT = (
    "give it as torch.export.export(module.eval(), (torch.zeros(1, MAPS, Z, Y, X),)), or that "
    "saved with torch.export.save to a .pt2 file"
)
TRAINING = "is in training mode, in which it computes something else; give module.eval()"


def read_module(module: Any) -> Found:
    """Return the network of a sequential module.

    Raises:
        InvalidInput: the module is not sequential, has a layer that cannot be represented, or has
            one whose training mode computes something else.
    """
    return Found(tuple(_steps("", module)), Original("PyTorch", _runner(module)))


def _steps(name: str, module: Any) -> Iterator[Step]:
    """Yield the steps of a module and of the sequences nested in it."""
    from torch import nn

    kind = type(module).__name__
    origin = checks.origin(name or "the module", kind)
    if module._forward_hooks or module._forward_pre_hooks:
        checks.refuse(
            origin, f"has hooks, which may change what it computes; remove them or {EXPORT}"
        )
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for part, layer in module.named_children():
            yield from _steps(f"{name}.{part}" if name else part, layer)
        return
    if type(module).__module__.startswith("torch.nn."):
        yield from _layer(origin, kind, module)
        return
    checks.refuse(origin, f"is not an nn.Sequential of PyTorch's own layers; {EXPORT}")


def _layer(origin: str, kind: str, module: Any) -> Iterator[Step]:
    """Yield one of PyTorch's own layers as a step, or nothing if it does nothing in evaluation."""
    array = checks.array_of
    match kind:
        case "Conv3d":
            yield checks.convolution(
                origin,
                array(module.weight),
                array(module.bias),
                stride=module.stride,
                padding=module.padding,
                dilation=module.dilation,
                groups=module.groups,
            )
        case "MaxPool3d":
            if module.return_indices:
                checks.refuse(origin, "returns indices, too; give it return_indices=False")
            yield checks.max_pooling(
                origin,
                module.kernel_size,
                stride=module.stride,
                padding=module.padding,
                dilation=module.dilation,
                ceil_mode=module.ceil_mode,
            )
        case "BatchNorm3d" | "SyncBatchNorm":
            folded = checks.batch_norm(
                origin,
                array(module.weight),
                array(module.bias),
                array(module.running_mean),
                array(module.running_var),
                module.eps,
            )
            if module.training:
                checks.refuse(origin, TRAINING)
            yield folded
        case "Softmax":  # PyTorch uses axis 1 of five if none is given
            yield checks.softmax(origin, 1 if module.dim is None else module.dim)
        case "LeakyReLU":
            yield checks.nonlinearity(origin, "leaky_relu", module.negative_slope)
        case "ELU":
            yield checks.nonlinearity(origin, "elu", module.alpha)
        case "ReLU" | "Sigmoid" | "Tanh":
            plain: dict[str, Activation] = {"ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
            yield checks.nonlinearity(origin, plain[kind])
        case "Identity":
            return
        case "Dropout" | "Dropout1d" | "Dropout2d" | "Dropout3d":
            _check_drops_nothing(origin, module)
        case "AlphaDropout" | "FeatureAlphaDropout":
            _check_drops_nothing(origin, module)
        case _:
            checks.unknown(origin)


def _check_drops_nothing(origin: str, module: Any) -> None:
    if module.training and module.p > 0:
        checks.refuse(origin, TRAINING)


def _runner(module: Any) -> Callable[[Float32], Float32]:
    """Return a function that runs a float32 copy of the module in evaluation mode on arrays."""

    def run(x: Float32) -> Float32:
        import torch

        own = copy.deepcopy(module).cpu().float().eval()
        with torch.inference_mode():
            y = own(torch.from_numpy(x)[None])
        return np.asarray(y[0].numpy(), np.float32)

    return run
