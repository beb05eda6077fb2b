"""This machine's own primitives, by way of the command, the library and the inferer."""

from __future__ import annotations

import numpy as np
import pytest
from command_line import INFER, read_main, succeeds, voxels
from tiny_network import close, expected, whole

import znni
from znni.network.network import Network
from znni.network.weights import ConvWeights, Weights

pytestmark = pytest.mark.usefixtures("small_case", "nothing_partial")


def test_the_command_gives_the_network_at_every_voxel() -> None:
    said = succeeds(*INFER, "--threads", 2)
    assert said.startswith("out.h5: 1,440 voxels in ")
    assert close(read_main("out.h5"), whole())


def test_inferer_and_infer_agree(network: Network, weights: Weights) -> None:
    volume = voxels()
    out = np.empty((2, 6, 15, 16), np.float32)
    report = znni.infer(volume, network, out, weights=weights, threads=2)
    inferer = znni.Inferer(network, weights, threads=2)
    np.testing.assert_array_equal(inferer(volume), out)
    assert close(out, expected(volume))
    assert report.voxels == 6 * 15 * 16


def test_weights_and_volumes_in_any_order_and_precision(network: Network, weights: Weights) -> None:
    turned = {
        name: ConvWeights(np.asfortranarray(layer.weight, float), np.repeat(layer.bias, 2)[::2])
        for name, layer in weights.layers.items()
    }
    volume = np.asfortranarray(voxels((7, 21, 23)))  # of whole patches: read as it is stored
    found = znni.Inferer(network, Weights(turned, "mine"), threads=2)(volume)
    assert close(found, expected(volume))
