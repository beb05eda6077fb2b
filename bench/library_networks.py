"""Networks of PyTorch's libraries, and files of them, for comparisons with znni."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from znni.core.shapes import Vec3

STAGES = (32, 64, 128, 256, 320, 320, 320)  # maps of nnU-Net's stages


def monai(name: str, *args: Any, **options: Any) -> Any:
    """Return a network of MONAI."""
    from monai.networks import nets

    return getattr(nets, name)(*args, **options)


def pytorch_3dunet(name: str, order: str = "gcr", maps: int = 32, levels: int = 4) -> Any:
    """Return a network of pytorch-3dunet, whose layers have an order, such as ``gcr``."""
    from pytorch3dunet.unet3d import model

    return getattr(model, name)(1, 2, f_maps=maps, layer_order=order, num_levels=levels)


def nnunet(
    name: str,
    blocks: int | Sequence[int],
    back: int | Sequence[int],
    flat: int = 0,
    stages: int = 6,
) -> Any:
    """Return a network of nnU-Net.

    Args:
        name: the class.
        blocks: convolutions, or residual blocks, of each stage on the way down.
        back: convolutions of each stage on the way up.
        flat: the first stages, whose kernels have no extent along z. Poolings between these have
            none either.
        stages: the number of stages.
    """
    from dynamic_network_architectures.architectures import unet
    from torch import nn

    kernels = [(1, 3, 3)] * flat + [(3, 3, 3)] * (stages - flat)
    strides = [(1, 1, 1)] + [(1 if index <= flat else 2, 2, 2) for index in range(1, stages)]
    return getattr(unet, name)(
        1, stages, STAGES[:stages], nn.Conv3d, kernels, strides, blocks, 3, back, conv_bias=True,
        norm_op=nn.InstanceNorm3d, norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=nn.LeakyReLU, nonlin_kwargs={"inplace": True},
    )  # fmt: skip


def primus(size: str, side: int) -> Any:
    """Return nnU-Net's transformer of a size, such as ``S``, for a window of so many voxels."""
    from dynamic_network_architectures.architectures import primus as networks

    return getattr(networks, f"Primus{size}")(1, 2, (8, 8, 8), (side,) * 3)


def seeded(make: Callable[[], Any]) -> Any:
    """Return a module in evaluation mode, with weights and norms that are like trained ones.

    Kernels keep the size of values, so that each level of a U-Net adds to the output.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = make()
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.Conv3d | nn.ConvTranspose3d):
                nn.init.kaiming_normal_(layer.weight)
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.normal_().mul_(0.1)
            elif parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
        for name, statistics in module.named_buffers():
            if name.endswith("running_mean"):
                statistics.normal_().mul_(0.1)
            if name.endswith("running_var"):
                statistics.uniform_(0.5, 2)
    return module.eval()


def export(module: Any, size: Vec3, file: Path) -> None:
    """Write a module of one input map as a ``.pt2`` or ``.onnx`` file for inputs of this size."""
    import torch

    example = (torch.zeros(1, 1, *size),)
    with warnings.catch_warnings(action="ignore"):
        if file.suffix == ".pt2":
            torch.export.save(torch.export.export(module, example), file)
        else:
            torch.onnx.export(module, example, file, dynamo=False, opset_version=17)
