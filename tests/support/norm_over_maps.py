"""A network of PyTorch that znni cannot express."""

from __future__ import annotations

from typing import Any

from torch import nn


class NormOverMaps(nn.Module):
    """A network whose maps are divided by their norm at each voxel, which znni cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(x / (x.norm(dim=1, keepdim=True) + 1))
