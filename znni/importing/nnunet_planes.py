"""2D configurations of nnU-Net, as 3D ones whose windows are one slice deep.

A 2D convolution is a 3D one whose kernel has one slice. So the network stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from znni.importing.nnunet_plans import Configuration

SIZES = ("kernel_sizes", "strides")  # arguments with a number for each axis of each stage


def is_planar(configuration: Configuration) -> bool:
    """Return whether a configuration is of two dimensions."""
    return len(configuration.patch_size) == 2


def in_space(configuration: Configuration) -> Configuration:
    """Return a 2D configuration as a 3D one. Its voxels have any extent across slices.

    The extent that stands there is 1.
    """
    architecture = configuration.architecture
    given = architecture.arch_kwargs
    stages = given.get("n_stages", 0)
    arguments = {
        key: _sizes(value, stages) if key in SIZES else _class(value)
        for key, value in given.items()
    }
    return configuration.model_copy(
        update={
            "patch_size": [1, *configuration.patch_size],
            "spacing": [1.0, *configuration.spacing],
            "architecture": architecture.model_copy(update={"arch_kwargs": arguments}),
        }
    )


def tensors_in_space(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a 2D network as those of a 3D one: kernels have one slice."""
    return {
        name: tensor.unsqueeze(2) if tensor.ndim == 4 else tensor
        for name, tensor in tensors.items()
    }


def _sizes(value: Any, stages: int) -> Any:
    """Return kernels or strides with 1 across slices, for each stage."""
    each = value if isinstance(value, list) else [value] * stages
    return [[1, *one] if isinstance(one, list) else [1, one, one] for one in each]


def _class(value: Any) -> Any:
    """Return the name of a class for three axes in place of two. Other values stay."""
    return value.replace("2d", "3d") if isinstance(value, str) else value
