"""Networks that people write in PyTorch themselves: valid and residual U-Nets, and MeshNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Extents: TypeAlias = tuple[int, int, int]


class ValidUNet(nn.Module):
    """A U-Net without padding, whose skips are cropped to the centre, as in funlib.

    Args:
        maps: the maps of each level.
        windows: the extents of the poolings between levels.
        classes: the maps of the output.
        transposed: upsample by transposed convolutions, instead of by repetition.
        evens: crop what the lowest level gives, as funlib does in evaluation mode: outputs of
            neighbouring inputs then fit together, if these are apart by a multiple of all poolings.
    """

    def __init__(
        self,
        maps: Sequence[int],
        windows: Sequence[Extents],
        classes: int = 3,
        *,
        transposed: bool = False,
        evens: bool = False,
    ) -> None:
        super().__init__()
        self._windows, self._evens = tuple(windows), evens
        self.left = nn.ModuleList([_twice(f, g) for f, g in pairwise((1, *maps))])
        self.right = nn.ModuleList([_twice(f + g, f) for f, g in pairwise(maps)])
        self.ups = nn.ModuleList(
            nn.ConvTranspose3d(f, f, window, window)
            if transposed
            else nn.Upsample(scale_factor=tuple(map(float, window)))
            for f, window in zip(maps[1:], windows, strict=True)
        )
        self.head = nn.Conv3d(maps[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        y: Tensor = self.head(self._level(0, x))
        return y

    def _level(self, index: int, x: Tensor) -> Tensor:
        skip: Tensor = self.left[index](x)
        if index == len(self._windows):
            return skip
        window = self._windows[index]
        if any(extent % step for extent, step in zip(skip.shape[2:], window, strict=True)):
            raise ValueError(f"values of {tuple(skip.shape[2:])} cannot be pooled by {window}")
        low = self.ups[index](self._level(index + 1, functional.max_pool3d(skip, window)))
        if self._evens and index == len(self._windows) - 1:
            low = _cropped(low, self._even_size(low))
        both = torch.cat([_cropped(skip, list(low.shape[2:])), low], 1)
        y: Tensor = self.right[index](both)
        return y

    def _even_size(self, low: Tensor) -> list[int]:
        """Return extents of which two convolutions leave a multiple of all poolings."""
        sizes = []
        for axis, extent in enumerate(low.shape[2:]):
            period = 1
            for window in self._windows:
                period *= window[axis]
            sizes.append((extent - 4) // period * period + 4)
        return sizes


def _twice(taken: int, out: int) -> nn.Sequential:
    """Return two valid convolutions, each with a ReLU."""
    first, second = nn.Conv3d(taken, out, 3), nn.Conv3d(out, out, 3)
    return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))


def _cropped(x: Tensor, size: list[int]) -> Tensor:
    """Return the centre of a value."""
    (i, j, k), (a, b, c) = ((m - n) // 2 for m, n in zip(x.shape[2:], size, strict=True)), size
    return x[:, :, i : i + a, j : j + b, k : k + c]


class ResidualUNet(nn.Module):
    """A residual symmetric U-Net of connectomics, which pools in the plane only.

    Args:
        maps: the maps of each level.
        classes: the maps of the output.
        norm_first: put norm and activation before each convolution, as in emvision. Otherwise they
            come after it, and after each sum.
        up: upsampling by transposed convolutions of single maps, or by repetition.
    """

    def __init__(
        self,
        maps: Sequence[int],
        classes: int = 3,
        *,
        norm_first: bool = True,
        up: Literal["bilinear", "nearest"] = "bilinear",
    ) -> None:
        super().__init__()
        self.start = nn.Conv3d(1, maps[0], (1, 5, 5), padding=(0, 2, 2), bias=False)
        taken = (maps[0], *maps)
        self.down = nn.ModuleList([_Residual(f, g, norm_first) for f, g in pairwise(taken)])
        self.ups = nn.ModuleList([_upsampling(f, up) for f in maps[1:]])
        self.narrow = nn.ModuleList([nn.Conv3d(g, f, 1, bias=False) for f, g in pairwise(maps)])
        self.right = nn.ModuleList([_Residual(f, f, norm_first) for f in maps[:-1]])
        self.last = nn.Sequential(nn.BatchNorm3d(maps[0]), nn.ELU(inplace=True))
        self.end = nn.Conv3d(maps[0], classes, (1, 5, 5), padding=(0, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        x, skips = self.start(x), []
        for index, block in enumerate(self.down):
            if index:
                skips.append(x)
                x = functional.max_pool3d(x, (1, 2, 2))
            x = block(x)
        for index in reversed(range(len(skips))):
            x = self.right[index](self.narrow[index](self.ups[index](x)) + skips[index])
        y: Tensor = self.end(self.last(x))
        return y


class _Residual(nn.Module):
    """A convolution, and two more to whose result its own is added."""

    def __init__(self, taken: int, out: int, norm_first: bool) -> None:
        super().__init__()
        self._norm_first = norm_first
        inputs = (taken, out, out, *([out] if norm_first else []))
        self.convs = nn.ModuleList([nn.Conv3d(f, out, 3, padding=1, bias=False) for f in inputs])
        norms = inputs if norm_first else [out] * 3
        self.norms = nn.ModuleList([nn.BatchNorm3d(f) for f in norms])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        if self._norm_first:
            x = self._convolved(0, x)
            return self._convolved(3, self._convolved(2, self._convolved(1, x)) + x)
        x = functional.elu(self.norms[0](self.convs[0](x)))
        y = functional.elu(self.norms[1](self.convs[1](x)))
        return functional.elu(self.norms[2](x + self.convs[2](y)))

    def _convolved(self, index: int, x: Tensor) -> Tensor:
        y: Tensor = self.convs[index](functional.elu(self.norms[index](x)))
        return y


def _upsampling(maps: int, up: str) -> nn.Module:
    """Return a layer that doubles the extents in the plane."""
    if up == "nearest":
        return nn.Upsample(scale_factor=(1.0, 2.0, 2.0))
    return nn.ConvTranspose3d(
        maps, maps, (1, 4, 4), stride=(1, 2, 2), padding=(0, 1, 1), groups=maps, bias=False
    )


def mesh_net(maps: int, dilations: Sequence[int], classes: int = 3) -> nn.Module:
    """Return a network of dilated convolutions that keep the size of their input."""
    layers: list[nn.Module] = []
    for index, dilation in enumerate(dilations):
        taken = maps if index else 1
        layers += [nn.Conv3d(taken, maps, 3, padding=dilation, dilation=dilation)]
        layers += [nn.BatchNorm3d(maps), nn.ReLU(inplace=True), nn.Dropout3d(0.1)]
    return nn.Sequential(*layers, nn.Conv3d(maps, classes, 1))
