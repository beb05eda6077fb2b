"""Networks that take their axes in another order than z, y, x."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import numbers, read_back, relative, torch_or_skip

import znni
from znni.core.errors import InvalidInput
from znni.importing.parity import Parity
from znni.primitives.tiled_reference import output_at_once

torch = torch_or_skip()
nn = torch.nn

pytestmark = pytest.mark.usefixtures("fake_primitives")


def module() -> Any:
    """A network whose layers differ along the axes, which it calls x, y and z."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 4, (5, 3, 1), padding=(2, 1, 0)),
        nn.ReLU(),
        nn.AvgPool3d((2, 1, 3)),
        nn.ConvTranspose3d(4, 2, (2, 1, 3), stride=(2, 1, 3)),
    ).eval()


@pytest.mark.parametrize("axes", ["xyz", "zxy"])
def test_kernels_are_turned(axes: str, tmp_path: Path) -> None:
    found = znni.import_network(module(), tmp_path / "net.yaml", axes=axes)
    assert isinstance(found.parity, Parity)
    assert found.parity.error < 1e-5
    assert f"its axes are {axes} in the original, and zyx here" in str(found)
    network, weights = read_back(tmp_path / "net.yaml")
    x = numbers(1, 6, 12, 18)
    there = [0, *(1 + "zyx".index(axis) for axis in axes)]
    back = [0, *(1 + axes.index(axis) for axis in "zyx")]
    with torch.no_grad():
        given = np.ascontiguousarray(x.transpose(there))
        made = module()(torch.from_numpy(given)[None])[0].numpy()
    assert relative(output_at_once(network, weights, x), made.transpose(back)) < 1e-5
    plain = znni.import_network(module(), tmp_path / "plain.yaml")
    assert plain.network.nodes != found.network.nodes
    hint = "import it with axes='xyz' (--axes xyz)"
    assert (hint in str(plain), hint in str(found)) == (True, False)


def test_axes_are_checked(tmp_path: Path) -> None:
    for axes in ("xy", "xyy", "abc", ""):
        with pytest.raises(InvalidInput, match=re.escape(f"axes is {axes!r}; name x, y and z")):
            znni.import_network(module(), tmp_path / "net.yaml", axes=axes)
    assert not (tmp_path / "net.yaml").exists()
