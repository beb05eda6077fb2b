"""Blocks outside a mask, and blocks of constant input, are not computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import NET, attributes, read_main, refused, succeeds
from fakes import Watched, fake_catalogue
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import networks
from tiny_network import expected

import znni
from bench.reference import sliding_output
from znni.core.errors import InvalidInput
from znni.engine.block_reader import Skipped, is_constant, of_constant
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.primitive import convolved

SIZE = (3, 35, 37)
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", "--plan", "plan.json")
calls: list[str] = []


@pytest.fixture(autouse=True)
def nine_blocks(
    small_case: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A volume that 9 blocks of 2x10x10 cover, whose plan is given."""
    write(np.random.default_rng(1).integers(1, 200, SIZE).astype(np.uint8))
    if "real" in request.node.name:
        return
    watched = Watched("conv", convolved, flops=100.0, before=lambda layer: calls.append(layer.name))
    catalogue = fake_catalogue(watched)
    monkeypatch.setattr("znni.inference.planning.catalogue", lambda _machine: catalogue)
    small = znni.plan("tiny.yaml", (3, 15, 17), threads=1)
    (small_case / "plan.json").write_text(small.to_json())
    assert small.patch == (2, 10, 10)
    calls.clear()


def write(values: Any, name: str = "volume.h5") -> None:
    with h5py.File(name, "w") as file:
        file["raw"] = values


def read_input() -> Any:
    with h5py.File("volume.h5") as file:
        return file["raw"][()]


def blocks(count: int = 1) -> int:
    """How many were computed."""
    return calls.count("conv1") // count


def test_blocks_outside_a_mask_hold_nothing_and_are_not_computed() -> None:
    mask = np.zeros(SIZE, np.int16)
    mask[1, 2 + 12, 3 + 20] = -7  # in the block from (0, 10, 20) of the output
    mask[0, 0, 0] = 1  # where no voxel has an output
    write(mask, "mask.h5")
    assert "blocks not computed: 8 outside the mask" in succeeds(*INFER, "--mask", "mask.h5")
    found, whole = read_main("out.h5"), expected(read_input())
    inside = (slice(None), slice(0, 2), slice(10, 20), slice(20, 30))
    np.testing.assert_allclose(found[inside], whole[inside], rtol=0, atol=1e-6)
    found[inside] = 0
    assert not found.any()
    assert blocks() == 1
    assert attributes()["mask"] == "mask.h5"
    assert (attributes()["blocks_outside_mask"], attributes()["blocks_constant"]) == (8, 0)
    assert "outside the mask or the crop hold 0" in succeeds("verify", "out.h5", "--seed", 1)


def test_a_mask_of_everything_changes_nothing() -> None:
    succeeds(*INFER)
    whole = read_main("out.h5")
    write(np.full(SIZE, 0.5), "mask.h5")
    succeeds(*INFER, "--mask", "mask.h5", "--overwrite")
    np.testing.assert_array_equal(read_main("out.h5"), whole)
    assert attributes()["blocks_outside_mask"] == 0


def test_a_mask_is_of_input_voxels_whatever_the_region() -> None:
    mask = np.zeros(SIZE, bool)
    mask[:, 25:, :] = True
    whole = expected(read_input())
    result = np.full((2, 1, 20, 20), np.nan, np.float32)
    plan = znni.plan("tiny.yaml", (2, 9, 10), threads=1)
    report = znni.infer(
        read_input(),
        "tiny.yaml",
        result,
        roi=np.s_[1:2, 10:30, 10:30],
        mask=mask,
        plan=plan,
    )
    assert plan.patch == (1, 4, 4)
    assert not result[:, :, :12].any()  # blocks of the rows 10, 14 and 18
    wanted = whole[:, 1:2, 22 - 2 : 30 - 2, 10 - 3 : 30 - 3]
    np.testing.assert_allclose(result[:, :, 12:], wanted, rtol=0, atol=1e-6)
    assert report.skipped == Skipped(outside_mask=15)


def test_what_a_mask_leaves_out_may_still_be_seen() -> None:
    values = np.ones(SIZE, np.float32)
    values[1, 12, 20] = np.nan
    write(values)
    mask = np.zeros(SIZE, np.uint8)
    mask[1, 14, 23] = 1
    write(mask, "mask.h5")
    message = refused(*INFER, "--mask", "mask.h5")
    assert "the volume holds nan at voxel z=1, y=12, x=20; replace" in message
    assert "; the mask is 0 there, but this voxel is seen by others; out.h5 was not" in message
    mask[1, 12, 20] = 1
    write(mask, "wider.h5")
    assert "the mask is 0" not in refused(*INFER, "--mask", "wider.h5")


def test_nan_in_a_mask_is_neither_inside_nor_outside() -> None:
    mask = np.zeros(SIZE, np.float32)
    mask[1, 14, 23] = np.nan
    write(mask, "mask.h5")
    message = refused(*INFER, "--mask", "mask.h5")
    assert "the mask holds nan at voxel z=1, y=14, x=23; give 0 where no output is" in message
    assert "the mask is 0" not in message
    mask[1, 14, 23] = np.inf
    write(mask, "infinite.h5")
    assert "8 outside the mask" in succeeds(*INFER, "--mask", "infinite.h5", "--no-resume")


@pytest.mark.parametrize("shape", [(3, 35, 38), (2, *SIZE)])
def test_masks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    write(np.zeros(shape, np.uint8), "mask.h5")
    message = refused(*INFER, "--mask", "mask.h5")
    assert "the volume is 3x35x37; give a mask of one map and the volume's extents" in message
    assert "no such file" in refused(*INFER, "--mask", "absent.h5")
    assert not Path("out.h5").exists()


def test_verifying_needs_the_mask() -> None:
    write(np.zeros(SIZE, np.uint8), "mask.h5")
    succeeds(*INFER, "--mask", "mask.h5")
    found = znni.verify("out.h5", voxels=7)
    assert (found.unneeded, found.wrong) == (7, 0)
    write(np.ones(SIZE, np.uint8), "mask.h5")
    assert znni.verify("out.h5", voxels=7).wrong == 7
    Path("mask.h5").rename("moved.h5")
    assert "with the mask mask.h5: if that lies elsewhere" in refused("verify", "out.h5")
    assert "differ" in refused("verify", "out.h5", "--mask", "moved.h5", code=5)
    succeeds(*INFER, "--overwrite")
    with pytest.raises(InvalidInput, match="without a mask"):
        znni.verify("out.h5", mask="moved.h5")


def test_constant_input_is_evaluated_once() -> None:
    values = read_input()
    values[:, :25, :] = 90
    write(values)
    said = succeeds(*INFER)
    assert "blocks not computed: 6 of constant input" in said
    assert blocks() == 3
    found = read_main("out.h5")
    np.testing.assert_allclose(found, expected(values), rtol=0, atol=1e-6)
    constant = found[:, :, :20].reshape(2, -1)
    assert (constant == constant[:, :1]).all()
    assert attributes()["blocks_constant"] == 6
    assert znni.verify("out.h5", voxels=20).agrees


def test_constants_of_a_volume_in_memory() -> None:
    inferer = znni.Inferer("tiny.yaml", border="same", pad="edge")
    for value in (0, 7, 0):
        values = np.full((3, 10, 12), value, np.float32)
        np.testing.assert_allclose(
            inferer(values)[:, 1, 5, 5],
            expected(np.full((3, 10, 12), value))[:, 1, 2, 2],
            rtol=1e-6,
        )
    assert not calls
    values[0, 0, 0] = 1  # the zeros beyond the edges are another constant than what is within
    assert inferer(values).shape == (2, 3, 10, 12)
    assert calls


@given(networks(), st.integers(0, 99))
@settings(max_examples=40)
def test_the_output_of_a_constant(network: Network, seed: int) -> None:
    weights = random_weights(network, seed)
    values = np.random.default_rng(seed).standard_normal(network.in_features).astype(np.float32)
    shape = (network.in_features, *network.field_of_view)
    window = np.broadcast_to(values[:, None, None, None], shape)
    wanted = sliding_output(network, weights, window)[:, 0, 0, 0]
    found = of_constant(network, weights, values)[:, 0, 0, 0]
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-7)


def test_one_other_value_is_not_constant() -> None:
    block = np.ones((2, 3, 4, 5), np.float32)
    block[1] = 4
    assert is_constant(block)
    for place in np.ndindex(block.shape):
        other = block.copy()
        other[place] += 1e-6
        assert not is_constant(other)


def test_real_primitives_give_constants_to_within_their_error() -> None:
    network = znni.load_network("tiny.yaml")
    values = np.full((12, 30, 30), 90, np.uint8)
    skipped = znni.Inferer(network, threads=1)(values)
    values[0, 0, 0] += 1
    computed = znni.Inferer(network, threads=1)(values)
    assert not (skipped == computed).all()
    np.testing.assert_allclose(skipped[:, 2:, 8:, 8:], computed[:, 2:, 8:, 8:], rtol=0, atol=4e-5)


def test_what_was_skipped_in_words() -> None:
    assert str(Skipped()) == ""
    assert str(Skipped(1)) == "1 block not computed: 1 outside the mask"
    assert str(Skipped(2, 1000)) == (
        "1,002 blocks not computed: 2 outside the mask, 1,000 of constant input"
    )


def test_a_network_without_scaling_is_given_zeros() -> None:
    Path("tiny.yaml").write_text(NET.replace("input: {scale: 0.01, offset: -1}\n", ""))
    write(np.zeros(SIZE, np.uint8))
    out = ("--border", "same", "--pad", "constant")
    said = succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", *out)
    assert "1 block not computed: 1 of constant input" in said
    assert not calls
