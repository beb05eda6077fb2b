"""A network of PyTorch that znni cannot express."""

from __future__ import annotations

from typing import Any

from torch import nn


class NormOverMaps(nn.Module):
    """A network with layer norm over maps, which znni has not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, 1)

    def forward(self, x: Any) -> Any:
        x = self.first(x).permute(0, 2, 3, 4, 1)
        return self.last(nn.functional.layer_norm(x, (4,)).permute(0, 4, 1, 2, 3))
