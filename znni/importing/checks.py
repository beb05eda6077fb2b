"""Steps from the descriptions of layers in a source, after checks that networks here allow them.

All functions raise an ``InvalidInput`` that names the layer's origin, its problem and a remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.core.yaml_file import is_count
from znni.importing.steps import Affine, Convolution, Float64, MaxPooling, Nonlinearity
from znni.network.layers import Activation

# Required parameters of activations: the slope of leaky_relu, the scale of elu.
PARAMETERS: Mapping[str, float] = {"leaky_relu": 0.01, "elu": 1.0}

CHAIN = (
    "networks here are chains of convolutions (stride 1, no padding), max-pooling (stride = "
    "window), batch normalization and the activations " + ", ".join(get_args(Activation))
)
KEEP_SIZES = "pooling is what lowers resolution, and the output is computed for every voxel"
INSIDE = (
    "train or export it without padding (the weights stay; only voxels near the edges differ) and "
    f"pad the whole volume with {option('border', 'same')}"
)


def refuse(origin: str, why: str) -> NoReturn:
    """Raise an error about a layer."""
    raise InvalidInput(f"{origin} {why}")


def unknown(origin: str) -> NoReturn:
    """Refuse a layer of a type that networks here do not have."""
    refuse(origin, f"cannot be represented; {CHAIN}")


def convolution(
    origin: str,
    weight: object,
    bias: object = None,
    *,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
    name: str = "",
) -> Convolution:
    """Return a convolution with weights (out, in, z, y, x) and a bias (out,) or none."""
    kernels = values(origin, "weight", weight)
    if kernels.ndim != 5 or 0 in kernels.shape:
        refuse(
            origin,
            f"has weights of shape {kernels.shape}; give those of a 3D convolution: "
            f"(out, in, z, y, x)",
        )
    if groups != 1:
        refuse(
            origin,
            f"has {groups} groups of maps; every map depends on all before it here: give the "
            f"kernels between groups as zeros, in one group",
        )
    if extents(origin, "stride", stride) != Vec3(1, 1, 1):
        refuse(origin, f"has stride {stride}; give stride 1: {KEEP_SIZES}")
    if extents(origin, "dilation", dilation) != Vec3(1, 1, 1):
        refuse(
            origin,
            f"has dilation {dilation}; give the network as it was before it was made dense, "
            f"pooling with stride = window and no dilation: znni makes it dense itself",
        )
    if not no_padding(padding, Vec3(*kernels.shape[2:])):
        refuse(origin, f"has padding {padding}; convolutions are valid here: {INSIDE}")
    shifts = np.zeros(len(kernels)) if bias is None else values(origin, "bias", bias)
    if shifts.shape != (len(kernels),):
        refuse(
            origin,
            f"has a bias of shape {shifts.shape} for {counted(len(kernels), 'map')}; give one "
            f"value for each",
        )
    return Convolution(origin, kernels, shifts, name)


def max_pooling(
    origin: str,
    window: object,
    *,
    stride: object,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
    name: str = "",
) -> MaxPooling:
    """Return a max-pooling. If ``stride`` is empty or None, it is the window."""
    size = extents(origin, "window", window)
    given = size if stride is None or stride == [] else extents(origin, "stride", stride)
    if given != size:
        refuse(origin, f"pools {size} with stride {given}; give it a stride that is its window")
    if not no_padding(padding, Vec3(1, 1, 1)):
        refuse(origin, f"has padding {padding}; pooling is valid here: {INSIDE}")
    if extents(origin, "dilation", dilation) != Vec3(1, 1, 1):
        refuse(origin, f"has dilation {dilation}; give it none: windows are of neighbours")
    if ceil_mode:
        refuse(
            origin,
            "has ceil_mode, and so pools what is left at the far edges; give it none: every "
            "voxel's own windows are whole here",
        )
    return MaxPooling(origin, size, name)


def batch_norm(
    origin: str,
    scale: object,
    shift: object,
    mean: object,
    variance: object,
    epsilon: object,
) -> Affine:
    """Return a batch normalization in evaluation mode; ``scale`` and ``shift`` may be None."""
    if mean is None or variance is None:
        refuse(
            origin,
            "keeps no running mean and variance, and so depends on all of its input; train it "
            "with them (track_running_stats=True)",
        )
    means, variances = values(origin, "running mean", mean), values(origin, "variance", variance)
    scales = np.ones_like(means) if scale is None else values(origin, "weight", scale)
    shifts = np.zeros_like(means) if shift is None else values(origin, "bias", shift)
    if means.ndim != 1 or len({a.shape for a in (means, variances, scales, shifts)}) != 1:
        refuse(origin, "has weight, bias, mean and variance of different shapes; give (maps,)")
    smallest = number(origin, "epsilon", epsilon)
    if variances.min(initial=0) < 0 or (variances + smallest).min(initial=1) <= 0:
        refuse(origin, "has a variance that is not positive; is the file whole? export it again")
    factors = scales / np.sqrt(variances + smallest)
    return Affine(origin, factors, shifts - means * factors)


def nonlinearity(origin: str, kind: Activation, parameter: object = None) -> Nonlinearity:
    """Return an activation; ``parameter`` belongs to ``leaky_relu`` or ``elu``."""
    if kind in PARAMETERS and parameter is not None:
        wanted = PARAMETERS[kind]
        if not math.isclose(number(origin, "parameter", parameter), wanted, rel_tol=1e-6):
            refuse(origin, f"has {parameter} for its parameter; {kind} has {wanted} here")
    return Nonlinearity(origin, kind)


def softmax(origin: str, axis: object) -> Nonlinearity:
    """Return a softmax over ``axis`` of (n, f, z, y, x)."""
    if axis not in (1, -4):
        refuse(origin, f"is over axis {axis}; here it runs over the maps of each voxel: axis 1")
    return Nonlinearity(origin, "softmax")


def values(origin: str, what: str, array: object) -> Float64:
    """Return an array's values after checking that they are finite real numbers."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        refuse(origin, f"has a {what} of {found}; give floating-point numbers")
    if not np.isfinite(array).all():
        refuse(origin, f"has a {what} that is not finite (NaN or infinite); export it again")
    return np.asarray(array, np.float64)


def extents(origin: str, what: str, given: object) -> Vec3:
    """Return three positive integers, from one or three given ones."""
    three = [size for size in _three(given) or () if is_count(size)]
    if len(three) != 3:
        refuse(origin, f"has {what} {given}; give three positive integers")
    return Vec3(*three)


def number(origin: str, what: str, given: object) -> float:
    """Return a finite number."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        refuse(origin, f"has {given!r} for its {what}; give a finite number")
    return float(given)


def no_padding(padding: object, kernel: Vec3) -> bool:
    """Return whether a padding, given as in PyTorch, adds nothing."""
    if isinstance(padding, str):
        return padding == "valid" or (padding == "same" and kernel == Vec3(1, 1, 1))
    three = _three(padding)
    return three is not None and all(pad == 0 for pad in three)


def _three(given: object) -> Sequence[object] | None:
    """Return three values from three or one; the one may be in a list."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    return several * 3 if len(several) == 1 else several if len(several) == 3 else None


def origin(name: str, kind: str) -> str:
    """Return the name of a source's layer, for messages and comments."""
    return "".join(c if c.isprintable() else "?" for c in f"{name} ({kind})")


def array_of(tensor: object) -> NDArray[np.generic] | None:
    """Return a PyTorch tensor as a NumPy array, floats as float64; None for None."""
    import torch

    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise InvalidInput(f"a {type(tensor).__name__} is no dense tensor; save plain tensors")
    held = tensor.detach().cpu()
    result: NDArray[np.generic] = (held.double() if held.is_floating_point() else held).numpy()
    return result
