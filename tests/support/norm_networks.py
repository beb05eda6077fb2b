"""Networks of PyTorch with layer norm over maps and global response normalization.

And the mean of the windows of any network of PyTorch, in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from znni.core.shapes import Box, Vec3
from znni.network.window import Window
from znni.primitives.reference import Float64

MAPS = 4


class LayerNorm(nn.Module):
    """Layer norm over maps, written out, as MedNeXt has it."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(maps)), nn.Parameter(torch.zeros(maps))

    def forward(self, x: Any) -> Any:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None, None] * x + self.bias[:, None, None, None]


class Response(nn.Module):
    """Global response normalization of maps along an axis."""

    def __init__(self, maps: int, axis: int) -> None:
        super().__init__()
        shape = [1] * 5
        shape[axis] = maps
        self.axis, self.voxels = axis, [each for each in range(1, 5) if each != axis % 5]
        self.gamma, self.beta = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.ones(shape))

    def forward(self, x: Any) -> Any:
        norms = torch.norm(x, p=2, dim=self.voxels, keepdim=True)
        shares = norms / (norms.mean(dim=self.axis, keepdim=True) + 1e-6)
        return self.gamma * (x * shares) + self.beta + x


class ConvNextBlock(nn.Module):
    """A block of ConvNeXt, whose maps are the last axis between two permutations."""

    def __init__(self, maps: int, *, response: bool) -> None:
        super().__init__()
        self.depthwise = nn.Conv3d(maps, maps, 3, padding=1, groups=maps)
        self.norm = nn.LayerNorm(maps, eps=1e-6)
        self.expand, self.project = nn.Linear(maps, 4 * maps), nn.Linear(4 * maps, maps)
        self.response = Response(4 * maps, -1) if response else nn.Identity()
        self.scale = nn.Parameter(torch.ones(maps))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 4, 1))
        y = self.project(self.response(nn.functional.gelu(self.expand(y))))
        return x + (self.scale * y).permute(0, 4, 1, 2, 3)


def convnext(*, response: bool) -> Any:
    """Return a network of two blocks of ConvNeXt, or of ConvNeXt V2."""
    blocks = (ConvNextBlock(MAPS, response=response) for _ in range(2))
    return nn.Sequential(nn.Conv3d(1, MAPS, 3, padding=1), LayerNorm(MAPS), *blocks)


def mednext() -> Any:
    """Return blocks of a MedNeXt, whose maps are always the second axis."""
    return nn.Sequential(
        nn.Conv3d(1, MAPS, 3, padding=1),
        nn.Conv3d(MAPS, MAPS, 5, padding=2, groups=MAPS),
        LayerNorm(MAPS),
        nn.Conv3d(MAPS, 3 * MAPS, 1),
        nn.GELU(),
        Response(3 * MAPS, 1),
        nn.Conv3d(3 * MAPS, 2, 1),
    )


def varied(module: Any) -> Any:
    """Return a module in evaluation mode whose factors and shifts are as after training."""
    torch.manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1 or name.endswith(("gamma", "beta")):
            nn.init.uniform_(parameter, 0.5, 1.5)
    return module.eval()


def blended(module: Any, x: Any, window: Window) -> Float64:
    """Return the mean of all windows at each voxel of a volume (f, z, y, x)."""
    size = Vec3(*x.shape[1:])
    starts = window.over(size).touching(Box(Vec3(0, 0, 0), size))
    boxes = [Box(start, start + window.size).slices for start in starts]
    double, given = module.double(), torch.from_numpy(x).double()[None]
    with torch.no_grad():
        made = [double(given[:, :, *box])[0].numpy() for box in boxes]
    module.float()
    sums, total = np.zeros((len(made[0]), *size)), np.zeros(size)
    counts = window.importance().astype(np.float64)
    for box, output in zip(boxes, made, strict=True):
        sums[:, *box] += output * counts
        total[box] += counts
    return sums / total
