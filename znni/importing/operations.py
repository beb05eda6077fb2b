"""Operations made from the arguments of PyTorch's operators, by PyTorch's names.

Each function checks that networks here have such a layer. If not, it raises an ``InvalidInput``
that names the layer's origin, its problem and a remedy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from znni.core.shapes import ONE, ZERO, Vec3
from znni.importing.checks import (
    count,
    extents,
    floats,
    groups_of,
    number,
    padding_of,
    per_map,
    refuse,
    vector,
)
from znni.importing.steps import Float64, Layered, Nonlinearity, affine
from znni.importing.steps import convolution as convolved
from znni.network.layers import LEAKY_SLOPE, ConvTranspose, GlobalPool, Normalize, Pool, VoxelNorm
from znni.network.pooling import Reduce

MOST_TAPS = 2**15  # of a kernel with the zeros between its taps
TRAINING = (
    "is in training mode, in which it computes something else; export the network in evaluation "
    "mode (call eval() before)"
)


def convolution(
    origin: str,
    weight: object,
    bias: object = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
) -> Layered:
    """Return a convolution with weights (out, in / groups, z, y, x) and a bias (out,) or none."""
    kernels = _kernels(origin, weight, "(out, in, z, y, x)")
    several = groups_of(origin, groups, len(kernels))
    steps, spread = extents(origin, "stride", stride), extents(origin, "dilation", dilation)
    zeros = padding_of(origin, padding, (Vec3(*kernels.shape[2:]) - 1) * spread)
    shifts = vector(origin, "bias", bias, len(kernels))
    return convolved(
        origin, kernels, shifts, stride=steps, dilation=spread, groups=several, padding=zeros
    )


def transposed_convolution(
    origin: str,
    weight: object,
    bias: object = None,
    stride: object = 1,
    padding: object = 0,
    output_padding: object = 0,
    groups: object = 1,
    dilation: object = 1,
) -> Layered:
    """Return a transposed convolution with weights (in, out / groups, z, y, x).

    Dilated kernels become larger ones with zeros between their taps. One of a single tap and no
    stride is a convolution, which more primitives compute.
    """
    kernels = _kernels(origin, weight, "(in, out, z, y, x)")
    several = groups_of(origin, groups, len(kernels))
    spread = extents(origin, "dilation", dilation)
    reach = (Vec3(*kernels.shape[2:]) - 1) * spread + 1
    if reach.volume > MOST_TAPS and spread != ONE:
        refuse(origin, f"has dilation {dilation}, and so a kernel of {reach}; give less")
    apart = np.zeros((*kernels.shape[:2], *reach))
    apart[:, :, *(slice(None, None, step) for step in spread)] = kernels
    cut = padding_of(origin, padding, ZERO)
    after = cut.after - padding_of(origin, output_padding, ZERO, "output padding").after
    if not after.within(cut.before):
        refuse(
            origin,
            f"cuts off {cut.before} samples at the beginning of its output and {after} at its "
            f"end; export it with equal pads, and an output_padding",
        )
    taken, out = len(kernels), kernels.shape[1] * several
    shifts, steps = vector(origin, "bias", bias, out), extents(origin, "stride", stride)
    if reach == steps == ONE and several == 1 and after == ZERO:
        return convolved(origin, np.swapaxes(apart, 0, 1), shifts)
    layer = ConvTranspose(origin, taken, out, reach, "identity", steps, cut.before, after)
    layer = replace(layer, groups=several)
    return Layered(layer, apart, shifts)


def max_pooling(
    origin: str,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
    reduce: Reduce = "max",
) -> Layered:
    """Return a pooling. If ``stride`` is empty or None, it is the window."""
    size = extents(origin, "window", kernel_size)
    step = size if stride is None or stride == [] else extents(origin, "stride", stride)
    spread = extents(origin, "dilation", dilation)
    if ceil_mode:
        refuse(
            origin,
            "has ceil_mode, and so pools what is left at the far edges; give it none: for inputs "
            "whose extents suit the network, the result is the same",
        )
    around = padding_of(origin, padding, (size - 1) * spread)
    return Layered(Pool(origin, size, reduce, step, around, spread))


def average_pooling(
    origin: str,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
    count_include_pad: object = True,
    divisor_override: object = None,
) -> Layered:
    """Return an average pooling, which counts the zeros around its input."""
    if divisor_override is not None:
        refuse(origin, "has a divisor_override; give it none")
    made = max_pooling(origin, kernel_size, stride, padding, dilation, ceil_mode, "average")
    if padding_of(origin, padding, ZERO).total != ZERO and not count_include_pad:
        refuse(origin, "leaves its padding out of averages; give it count_include_pad=True")
    return made


def global_pooling(origin: str, dim: object = None, reduce: Reduce = "average") -> Layered:
    """Return a pooling over the given axes of (n, f, z, y, x), which have to be those of voxels."""
    listed = dim if isinstance(dim, list | tuple) else [dim]
    axes = [axis % 5 if isinstance(axis, int) else axis for axis in listed]
    if sorted(map(str, axes)) != ["2", "3", "4"]:
        refuse(origin, f"is over axes {dim}; only all voxels are pooled here: axes 2, 3 and 4")
    return Layered(GlobalPool(origin, reduce))


def adaptive_pooling(origin: str, output_size: object, reduce: Reduce) -> Layered:
    """Return a pooling to a size, which has to be 1."""
    size = extents(origin, "output_size", output_size)
    if size != ONE:
        refuse(origin, f"pools to {size}; only a whole window is pooled here, to 1")
    return Layered(GlobalPool(origin, reduce))


def batch_norm(
    origin: str,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    eps: object = 1e-5,
    training: object = False,
) -> Layered:
    """Return a batch normalization in evaluation mode; ``weight`` and ``bias`` may be None."""
    if running_mean is None or running_var is None:
        refuse(
            origin,
            "keeps no running mean and variance, and so depends on all of its input; train it "
            "with them (track_running_stats=True)",
        )
    if training:
        refuse(origin, TRAINING)
    means = floats(origin, "running mean", running_mean)
    variances = floats(origin, "variance", running_var)
    scales = np.ones_like(means) if weight is None else floats(origin, "weight", weight)
    shifts = np.zeros_like(means) if bias is None else floats(origin, "bias", bias)
    if means.ndim != 1 or len({a.shape for a in (means, variances, scales, shifts)}) != 1:
        refuse(origin, "has weight, bias, mean and variance of different shapes; give (maps,)")
    smallest = number(origin, "epsilon", eps)
    if variances.min(initial=0) < 0 or (variances + smallest).min(initial=1) <= 0:
        refuse(origin, "has a variance that is not positive; is the file whole? export it again")
    factors = scales / np.sqrt(variances + smallest)
    return affine(origin, factors, shifts - means * factors)


def norm(layer: Normalize | VoxelNorm, weight: object = None, bias: object = None) -> Layered:
    """Return a norm with its factors and shifts; ``weight`` and ``bias`` may be None."""
    origin, maps = layer.name, layer.features
    scales = np.ones(maps) if weight is None else floats(origin, "weight", weight)
    shifts = np.zeros(maps) if bias is None else floats(origin, "bias", bias)
    if {scales.shape, shifts.shape} != {(maps,)}:
        refuse(origin, f"has weight and bias of other shapes than ({maps},); export it again")
    return Layered(layer, scales, shifts)


def group_norm(
    origin: str,
    maps: int,
    num_groups: object,
    weight: object = None,
    bias: object = None,
    eps: object = 1e-5,
) -> Layered:
    """Return a group norm, which is an instance norm if there are as many groups as maps."""
    groups, smallest = count(origin, "number of groups", num_groups), number(origin, "epsilon", eps)
    if maps % groups or smallest < 0:
        refuse(
            origin,
            f"has {groups} groups for {maps} maps and epsilon {smallest:g}; is the file "
            f"whole? export it again",
        )
    return norm(Normalize(origin, maps, groups, smallest), weight, bias)


def instance_norm(
    origin: str,
    maps: int,
    weight: object,
    bias: object,
    running_mean: object,
    running_var: object,
    use_input_stats: object,
    eps: object,
) -> Layered:
    """Return an instance norm; with running statistics it is a batch norm."""
    if use_input_stats is False:
        return batch_norm(origin, weight, bias, running_mean, running_var, eps)
    if running_mean is not None:
        refuse(origin, TRAINING)
    return group_norm(origin, maps, maps, weight, bias, eps)


def leaky_relu(origin: str, negative_slope: object = LEAKY_SLOPE) -> Nonlinearity:
    """Return a leaky_relu."""
    return Nonlinearity(origin, "leaky_relu", number(origin, "slope", negative_slope))


def elu(origin: str, alpha: object = 1, scale: object = 1, input_scale: object = 1) -> Nonlinearity:
    """Return an elu, all of whose parameters have to be 1."""
    for parameter in (alpha, scale, input_scale):
        if number(origin, "parameter", parameter) != 1:
            refuse(origin, f"has {parameter} for its parameter; elu has 1 here: train it with 1")
    return Nonlinearity(origin, "elu")


def prelu(origin: str, maps: int, weight: object) -> Nonlinearity:
    """Return a prelu with one slope for all maps, or one for each."""
    given = weight
    if isinstance(weight, np.ndarray) and weight.ndim == 1:
        given = weight.reshape(-1, 1, 1, 1)
    return Nonlinearity(origin, "prelu", slopes=per_map(origin, given, maps))


def gelu(origin: str, approximate: object = "none") -> Nonlinearity:
    """Return a gelu, exact or approximated by a tanh."""
    if approximate not in ("none", "tanh"):
        refuse(origin, f"is approximated by {approximate}; give it approximate='none' or 'tanh'")
    return Nonlinearity(origin, "gelu" if approximate == "none" else "gelu_tanh")


def softmax(origin: str, dim: object, dtype: object = None) -> Nonlinearity:
    """Return a softmax over an axis of (n, f, z, y, x), which has to be that of maps."""
    if dtype is not None:
        refuse(origin, "changes the type of numbers; export it in float32")
    if dim not in (1, -4):
        refuse(origin, f"is over axis {dim}; here it runs over the maps of each voxel: axis 1")
    return Nonlinearity(origin, "softmax")


def _kernels(origin: str, weight: object, axes: str) -> Float64:
    kernels = floats(origin, "weight", weight)
    if kernels.ndim != 5 or 0 in kernels.shape:
        refuse(
            origin, f"has weights of shape {kernels.shape}; give those of a 3D convolution: {axes}"
        )
    return kernels
