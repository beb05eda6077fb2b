"""Operations made from the layers of a source, after checks that znni has such layers.

All functions raise an ``InvalidInput`` that names the layer's origin, its problem and a remedy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.core.yaml_file import LARGEST, is_count
from znni.importing.steps import (
    Affine,
    Convolution,
    Float64,
    GlobalPooling,
    Nonlinearity,
    Normalization,
    Pooling,
    TransposedConvolution,
)
from znni.network.layer_geometry import ONE, ZERO
from znni.network.layers import LEAKY_SLOPE, Activation, Padding

LAYERS = (
    "networks here have 3D convolutions (also transposed), max and average pooling, nearest and "
    "trilinear upsampling by whole factors, global pooling, concatenation, sums, products, batch, "
    "instance and group normalization and the activations "
    + ", ".join(get_args(Activation))
    + ": write it with these"
)
WINDOWS = "depends on a whole window in a way that this version does not run"
MOST_TAPS = 2**15  # of a kernel with the zeros between its taps
# Ends of such messages, by the kind of operation.
NORMS = "replace it by batch normalization (BatchNorm3d) and train again"
ATTENTION = "replace it by convolutions and train again"
AS_IT_IS = "or give the file itself as the network, which its own library then computes in windows"


def refuse(origin: str, why: str) -> NoReturn:
    """Raise an error about a layer."""
    raise InvalidInput(f"{origin} {why}")


def unknown(origin: str) -> NoReturn:
    """Refuse a layer of a type that networks here do not have."""
    refuse(origin, f"cannot be represented; {LAYERS}")


def labels(origin: str) -> NoReturn:
    """Refuse a layer that gives the number of the largest map."""
    refuse(
        origin,
        f"gives the number of the largest map; export the network without it, and give a run "
        f"{option('labels', True)}",
    )


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
    """Return a convolution with weights (out, in / groups, z, y, x) and a bias (out,) or none."""
    kernels = _kernels(origin, weight, "(out, in, z, y, x)")
    several = _groups(origin, groups, len(kernels))
    steps, spread = extents(origin, "stride", stride), extents(origin, "dilation", dilation)
    zeros = padding_of(origin, padding, (Vec3(*kernels.shape[2:]) - 1) * spread)
    shifts = _bias(origin, bias, len(kernels))
    return Convolution(origin, kernels, shifts, name, steps, spread, several, zeros)


def transposed_convolution(
    origin: str,
    weight: object,
    bias: object = None,
    *,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
    name: str = "",
) -> TransposedConvolution:
    """Return a transposed convolution with weights (in, out / groups, z, y, x).

    Groups become one group whose other kernels are zero. Dilated kernels become larger ones with
    zeros between their taps.
    """
    kernels = _kernels(origin, weight, "(in, out, z, y, x)")
    several = _groups(origin, groups, len(kernels))
    if several > 1:
        kernels = _in_one_group(kernels, several)
    spread = extents(origin, "dilation", dilation)
    if spread != ONE:
        taps = tuple(slice(None, None, step) for step in spread)
        reach = (Vec3(*kernels.shape[2:]) - 1) * spread + 1
        if reach.volume > MOST_TAPS:
            refuse(origin, f"has dilation {dilation}, and so a kernel of {reach}; give less")
        apart = np.zeros((*kernels.shape[:2], *reach))
        apart[:, :, *taps] = kernels
        kernels = apart
    cut = padding_of(origin, padding, ZERO)
    added = _three_integers(output_padding)
    if added is None:
        refuse(origin, f"has output padding {output_padding}; give three integers from 0 on")
    after = cut.after - added
    if not after.within(cut.before):
        refuse(
            origin,
            f"cuts off {cut.before} samples at the beginning of its output and {after} at its "
            f"end; export it with equal pads, and an output_padding",
        )
    shifts = _bias(origin, bias, kernels.shape[1])
    steps = extents(origin, "stride", stride)
    return TransposedConvolution(origin, kernels, shifts, steps, cut.before, after, name)


def pooling(
    origin: str,
    window: object,
    *,
    stride: object,
    reduce: Literal["max", "average"] = "max",
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
    counts_padding: object = True,
    name: str = "",
) -> Pooling:
    """Return a pooling. If ``stride`` is empty or None, it is the window."""
    size = extents(origin, "window", window)
    step = size if stride is None or stride == [] else extents(origin, "stride", stride)
    zeros = padding_of(origin, padding, size - 1)
    if extents(origin, "dilation", dilation) != ONE:
        refuse(origin, f"has dilation {dilation}; give it none: windows are of neighbours")
    if ceil_mode:
        refuse(
            origin,
            "has ceil_mode, and so pools what is left at the far edges; give it none: for inputs "
            "whose extents suit the network, the result is the same",
        )
    if reduce == "average" and zeros.total != ZERO and not counts_padding:
        refuse(origin, "leaves its padding out of averages; give it count_include_pad=True")
    return Pooling(origin, size, name, reduce, ZERO if step == size else step, zeros)


def global_pooling(
    origin: str, axes: object, reduce: Literal["average", "max"] = "average"
) -> GlobalPooling:
    """Return a pooling over the given axes of (n, f, z, y, x), which have to be those of voxels."""
    given = [axis % 5 if isinstance(axis, int) else axis for axis in _listed(axes)]
    if sorted(map(str, given)) != ["2", "3", "4"]:
        refuse(origin, f"is over axes {axes}; only all voxels are pooled here: axes 2, 3 and 4")
    return GlobalPooling(origin, reduce)


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


def normalization(
    origin: str, groups: object, scale: object, shift: object, epsilon: object, maps: int
) -> Normalization:
    """Return an instance norm or a group norm; ``scale`` and ``shift`` may be None."""
    number_of_groups = count(origin, "number of groups", groups)
    scales = np.ones(maps) if scale is None else values(origin, "weight", scale)
    shifts = np.zeros(maps) if shift is None else values(origin, "bias", shift)
    if {scales.shape, shifts.shape} != {(maps,)}:
        refuse(origin, f"has weight and bias of other shapes than ({maps},); export it again")
    smallest = number(origin, "epsilon", epsilon)
    if maps % number_of_groups or smallest < 0:
        refuse(
            origin,
            f"has {number_of_groups} groups for {maps} maps and epsilon {smallest:g}; is the file "
            f"whole? export it again",
        )
    return Normalization(origin, number_of_groups, smallest, scales, shifts)


def leaky_relu(origin: str, slope: object) -> Nonlinearity:
    """Return a leaky_relu; None is the usual slope."""
    factor = LEAKY_SLOPE if slope is None else number(origin, "slope", slope)
    return Nonlinearity(origin, "leaky_relu", factor)


def elu(origin: str, *parameters: object) -> Nonlinearity:
    """Return an elu, all of whose parameters have to be 1 or None."""
    for parameter in parameters:
        if parameter is not None and number(origin, "parameter", parameter) != 1:
            refuse(origin, f"has {parameter} for its parameter; elu has 1 here: train it with 1")
    return Nonlinearity(origin, "elu")


def prelu(origin: str, slopes: object, maps: int) -> Nonlinearity:
    """Return a prelu with one slope for all maps, or one for each."""
    given = slopes
    if isinstance(slopes, np.ndarray) and slopes.ndim == 1:
        given = slopes.reshape(-1, 1, 1, 1)
    return Nonlinearity(origin, "prelu", slopes=per_map(origin, given, maps))


def gelu(origin: str, approximate: object) -> Nonlinearity:
    """Return a gelu, which has to be the exact one."""
    if approximate not in (None, "none"):
        refuse(origin, f"is approximated by {approximate}; give it approximate='none'")
    return Nonlinearity(origin, "gelu")


def softmax(origin: str, axis: object) -> Nonlinearity:
    """Return a softmax over ``axis`` of (n, f, z, y, x)."""
    if axis not in (1, -4):
        refuse(origin, f"is over axis {axis}; here it runs over the maps of each voxel: axis 1")
    return Nonlinearity(origin, "softmax")


def per_map(origin: str, constant: object, maps: int) -> Float64:
    """Return a constant as values (maps,), from a number or an array that broadcasts to them."""
    array = np.asarray(constant, np.float64) if _is_number(constant) else constant
    given = values(origin, "constant", array)
    if given.size != 1 and (1,) * (5 - given.ndim) + given.shape != (1, maps, 1, 1, 1):
        refuse(
            origin,
            f"has a constant of shape {given.shape} for {counted(maps, 'map')}; give one value, or "
            f"one for each map as (maps, 1, 1, 1)",
        )
    return np.broadcast_to(given.reshape(-1), maps).copy()


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


def count(origin: str, what: str, given: object) -> int:
    """Return a positive integer."""
    if not is_count(given):
        refuse(origin, f"has {what} {given}; give a positive integer")
    return given


def integer(origin: str, what: str, given: object) -> int:
    """Return an integer."""
    if not isinstance(given, int) or isinstance(given, bool):
        refuse(origin, f"has {given!r} for its {what}; give an integer")
    return given


def padding_of(origin: str, given: object, same: Vec3) -> Padding:
    """Return a padding, given as in PyTorch, or as six integers: all before, then all after.

    Args:
        origin: the layer.
        given: the padding.
        same: the samples that ``same`` adds per axis.
    """
    if given == "valid":
        return Padding()
    if given == "same":
        return Padding(same // 2, same - same // 2)
    several = _listed(given)
    sides = [several[:3], several[3:]] if len(several) == 6 else [several, several]
    before, after = (_three_integers(side) for side in sides)
    if before is None or after is None:
        refuse(origin, f"has padding {given}; give three integers from 0 on")
    return Padding(before, after)


def number(origin: str, what: str, given: object) -> float:
    """Return a finite number."""
    if not _is_number(given) or not math.isfinite(given):  # type: ignore[arg-type]
        refuse(origin, f"has {given!r} for its {what}; give a finite number")
    return float(given)  # type: ignore[arg-type]


def origin(name: str, kind: str) -> str:
    """Return the name of a source's layer, for messages and comments."""
    return "".join(c if c.isprintable() else "?" for c in f"{name} ({kind})")


def array_of(tensor: object) -> NDArray[np.generic] | None:
    """Return a PyTorch tensor as a NumPy array, floats as float64; None for None."""
    if tensor is None:
        return None
    torch = sys.modules.get("torch")  # only an imported PyTorch can have made a tensor
    if not (torch and isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided):
        raise InvalidInput(f"a {type(tensor).__name__} is no dense tensor; save plain tensors")
    held = tensor.detach().cpu()
    result: NDArray[np.generic] = (held.double() if held.is_floating_point() else held).numpy()
    return result


def _kernels(origin: str, weight: object, axes: str) -> Float64:
    kernels = values(origin, "weight", weight)
    if kernels.ndim != 5 or 0 in kernels.shape:
        refuse(
            origin,
            f"has weights of shape {kernels.shape}; give those of a 3D convolution: {axes}",
        )
    return kernels


def _groups(origin: str, groups: object, maps: int) -> int:
    if not is_count(groups) or maps % groups:
        refuse(origin, f"has {groups} groups for {counted(maps, 'map')}; give a divisor of these")
    return groups


def _in_one_group(kernels: Float64, groups: int) -> Float64:
    """Return transposed kernels in several groups as those of one group, with zeros between."""
    taken, given = len(kernels) // groups, kernels.shape[1]
    whole = np.zeros((len(kernels), given * groups, *kernels.shape[2:]))
    for index in range(groups):
        rows = slice(index * taken, (index + 1) * taken)
        whole[rows, index * given : (index + 1) * given] = kernels[rows]
    return whole


def _bias(origin: str, bias: object, maps: int) -> Float64:
    shifts = np.zeros(maps) if bias is None else values(origin, "bias", bias)
    if shifts.shape != (maps,):
        refuse(
            origin,
            f"has a bias of shape {shifts.shape} for {counted(maps, 'map')}; give one value for "
            f"each",
        )
    return shifts


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _three_integers(given: object) -> Vec3 | None:
    """Return three integers from 0 on, from three or one."""
    three = [
        size
        for size in _three(given) or ()
        if isinstance(size, int) and not isinstance(size, bool) and 0 <= size <= LARGEST
    ]
    return Vec3(*three) if len(three) == 3 else None


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _three(given: object) -> Sequence[object] | None:
    """Return three values from three or one; the one may be in a list."""
    several = _listed(given)
    return several * 3 if len(several) == 1 else several if len(several) == 3 else None
