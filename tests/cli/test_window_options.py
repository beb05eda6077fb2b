"""Options of windows, beside what a network's file says of them."""

from __future__ import annotations

import pytest

from znni.cli.options import WindowOptions
from znni.cli.values import in_windows
from znni.network.network_file import network_from_text

NET = """\
name: net
window: {size: 8, mirror: zyx}
layers:
  - conv: {features: 1, kernel: 3, padding: 1}
  - instance_norm: {}
"""


@pytest.mark.parametrize(
    ("option", "mirrored"), [(None, "zyx"), ("x,z", "zx"), ("y", "y"), ("none", ""), ("", "")]
)
def test_an_option_replaces_the_mirroring_of_the_file(option: str | None, mirrored: str) -> None:
    network = in_windows(
        network_from_text(NET, "net.yaml"), WindowOptions(overlap=0.25, mirror=option)
    )
    assert network.window
    assert network.window.mirror == mirrored
    assert network.window.overlap == 0.25


def test_a_file_may_say_that_nothing_is_mirrored() -> None:
    network = network_from_text(NET.replace("zyx", "none"), "net.yaml")
    assert network.window
    assert network.window.mirror == ""
