"""``znni example`` writes a volume to try networks on; ``znni infer`` leads to its picture."""

from __future__ import annotations

import logging
from io import StringIO
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import refused, succeeds, write_case, znni
from numpy.typing import NDArray
from paths import NETWORKS

from znni.cli.example import SEED, SIZE
from znni.network.network_file import load_network
from znni.volumes.synthetic_cells import synthetic_cells

pytestmark = pytest.mark.usefixtures("own_folder")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def raw_of(path: str) -> NDArray[np.uint8]:
    with h5py.File(path) as file:
        assert list(file) == ["raw"]
        return np.asarray(file["raw"])


def test_the_volume_is_of_the_default_name_and_replaced_only_if_asked() -> None:
    said = succeeds("example", "--size", "20,30,40")
    assert said.startswith("volume.h5: 20x30x40 voxels of uint8, made in ")
    assert said.endswith("run a network over it: znni infer volume.h5 --net cells-unet.yaml\n")
    first = raw_of("volume.h5")
    assert (first.shape, first.dtype) == ((20, 30, 40), np.uint8)
    np.testing.assert_array_equal(first, synthetic_cells(SEED, (20, 30, 40)).raw)

    said = refused("example", "--size", "20,30,40", "--seed", 5)
    assert said.startswith("volume.h5: exists; give --overwrite to replace it")
    np.testing.assert_array_equal(raw_of("volume.h5"), first)
    succeeds("example", "--size", "20,30,40", "--seed", 5, "--overwrite")
    assert (raw_of("volume.h5") != first).any()
    assert [path.name for path in Path().iterdir()] == ["volume.h5"]


def test_it_says_what_takes_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.core.logged.LONG_SECONDS", 1e-4)
    caplog.set_level(logging.INFO, logger="znni.waits")
    succeeds("example", "--size", "20,30,40")
    assert caplog.messages[0] == "making volume.h5, 0 s so far"


def test_the_volume_is_large_enough_for_all_networks() -> None:
    size = [int(extent) for extent in SIZE.split(",")]
    for path in NETWORKS.glob("*.yaml"):
        network = load_network(path)
        if not network.is_tiled:  # the others keep the size of their input
            view = network.field_of_view
            assert all(n >= v + 28 for n, v in zip(size, view, strict=True)), path


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("cells.tif",), "cells.tif: the example is an HDF5 file; let its name end in .h5"),
        (("a/cells.h5",), "a/cells.h5: there is no folder a; make it first"),
        (("--size", "20,30"), "--size 20,30 has 2 extents; give three whole numbers"),
        (("--size", "large"), "--size large has no extents; give three whole numbers"),
        (("--size", "20,0,30"), "seed 2007 and size 20x0x30 make no volume; give a seed from 0"),
        (("--seed", "-1"), "seed -1 and size 192x256x256 make no volume; give a seed from 0"),
    ],
)
def test_mistakes(options: tuple[str, ...], said: str) -> None:
    assert refused("example", *options).startswith(said)
    assert not list(Path().iterdir())


def test_only_a_terminal_is_told_how_to_look_at_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    write_case(Path())
    line = ("infer", "volume.h5", "--net", "tiny.yaml", "--overwrite")
    hint = "look at it: znni view volume.h5 volume-tiny.h5\n"
    assert hint not in succeeds(*line)
    monkeypatch.setattr("command_line.StringIO", Terminal)
    assert znni(*line).out.endswith(hint)
