"""Outputs of labels: the largest map, or what lies above a threshold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import refused, succeeds
from tiny_network import expected

import znni
from znni.core.shapes import Box, Vec3
from znni.engine.labels import Labels
from znni.inference.verify import verify
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network, network_from_text
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume

NET = """\
name: tiny
labels: {NAMES}
layers:
  - conv: {features: 4, kernel: 3, activation: relu}
  - conv: {features: 3, kernel: 2}
"""
SHAPE = (12, 14, 16)
OPTIONS: Any = {"device": "cpu", "costs": "built-in", "ram": "1GiB", "threads": 2}
RUN = ("infer", "volume.h5", "--net", "tiny.yaml", "--random-weights", "3", "--device", "cpu",
       "--costs", "built-in", "--ram", "1GiB", "--threads", "2")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_network("background: 0, nucleus: 7, wall: 300")
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = np.random.default_rng(2).standard_normal(SHAPE, np.float32)
    return tmp_path


def write_network(names: str) -> None:
    Path("tiny.yaml").write_text(NET.replace("NAMES", names))


def values() -> np.ndarray[Any, Any]:
    with h5py.File("volume.h5") as file:
        return expected(file["raw"][:], seed=3)


def labels_in(out: str) -> np.ndarray[Any, Any]:
    """Return the labels (z, y, x) of an output of one map."""
    opened = open_volume(out)
    (found,) = opened.read(Box(Vec3(0, 0, 0), opened.size))
    return found


@pytest.mark.parametrize("out", ["out.h5", "out.zarr"])
def test_voxels_get_the_label_of_their_largest_map(out: str) -> None:
    succeeds(*RUN, "--labels", "--out", out)
    stored = labels_in(out)
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(stored, np.array([0, 7, 300])[values().argmax(axis=0)])
    opened = open_volume(out)
    assert isinstance(opened, StoredVolume)
    names = json.loads(str(opened.attribute("labels")))
    assert names == {"background": 0, "nucleus": 7, "wall": 300}
    assert opened.attribute("threshold") == ""
    assert verify(out, voxels=50).agrees


def test_a_threshold_makes_a_mask_of_each_map() -> None:
    out = np.zeros((3, 9, 11, 13), np.uint8)
    znni.infer("volume.h5", "tiny.yaml", out, random_seed=3, threshold=0.1, **OPTIONS)
    np.testing.assert_array_equal(out, values() > 0.1)
    succeeds(*RUN, "--threshold", "0.1", "--out", "out.h5")
    assert verify("out.h5", voxels=50).agrees


@pytest.mark.parametrize("damage", [5, 7])
def test_wrong_labels_are_found(damage: int) -> None:
    succeeds(*RUN, "--labels", "--out", "out.h5")
    with h5py.File("out.h5", "r+") as file:
        file["main"][...] = damage  # no map's label, or one map's
    found = verify("out.h5", voxels=50)
    assert found.wrong > 10
    assert np.isinf(found.largest_error) == (damage == 5)


def test_labels_of_a_part_that_nobody_needs_are_zero() -> None:
    write_network("cell: 4, nucleus: 7, wall: 30")
    mask = np.zeros(SHAPE, np.uint8)
    mask[:, :4] = 1
    np.save("mask.npy", mask)
    plan = znni.plan("tiny.yaml", (7, 7, 7), **OPTIONS)
    Path("plan.json").write_text(plan.to_json())
    succeeds(*RUN, "--labels", "--mask", "mask.npy", "--out", "out.h5", "--plan", "plan.json")
    stored = labels_in("out.h5")
    assert stored.dtype == np.uint8
    assert (stored == 0).any()
    known = np.array([4, 7, 30])[values().argmax(axis=0)]
    np.testing.assert_array_equal(stored, np.where(stored == 0, 0, known))
    assert (stored[:, :2] == known[:, :2]).all()
    found = verify("out.h5", voxels=100)
    assert found.agrees
    assert found.unneeded > 0


def test_parts_and_resuming_give_the_same_labels() -> None:
    succeeds(*RUN, "--labels", "--out", "whole.zarr", "--part", "0/1")
    for index in (1, 0, 2):
        succeeds(*RUN, "--labels", "--out", "parts.zarr", "--part", f"{index}/3")
    for out in ("whole.zarr", "parts.zarr"):
        succeeds("finish", out)
    np.testing.assert_array_equal(labels_in("whole.zarr"), labels_in("parts.zarr"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--labels", "--threshold", "0.5"), "leave out --threshold 0.5"),
        (("--labels", "--dtype", "uint8"), "labels are stored as uint16; leave out"),
        (("--threshold", "nan"), "give a finite number"),
    ],
)
def test_what_cannot_be_is_one_line(more: tuple[str, ...], said: str) -> None:
    assert said in refused(*RUN, *more, "--out", "out.h5")
    assert not Path("out.h5").exists()


def test_one_map_has_no_largest() -> None:
    Path("tiny.yaml").write_text("name: one\nlayers:\n  - conv: {features: 1, kernel: 3}\n")
    assert "whose labels need a threshold; give" in refused(*RUN, "--labels", "--out", "out.h5")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("a: 0, b: 1", "there are 2 labels, and 3 output maps"),
        ("a: 0, b: 1, c: 1", "two maps have the same label"),
        ("a: 0, b: 1, c: 70000", "labels go from 0 to 65535"),
        ("a: 0, b: 1, c: -1", "labels go from 0 to 65535"),
    ],
)
def test_labels_of_a_network_file_are_checked(names: str, said: str) -> None:
    write_network(names)
    assert said in refused(*RUN, "--out", "out.h5")


def test_a_network_keeps_its_labels_as_text() -> None:
    network = load_network("tiny.yaml")
    again = network_from_text(network_text(network), "text")
    assert again.labels == network.labels == (("background", 0), ("nucleus", 7), ("wall", 300))


def test_of_equal_maps_the_first_counts() -> None:
    labels = Labels((3, 9))
    assert labels.apply(np.zeros((2, 1, 1, 1), np.float32)).tolist() == [[[[3]]]]
    assert labels.features(2) == 1
    assert Labels(threshold=1.0).features(2) == 2
    assert Vec3(*labels.apply(np.ones((2, 4, 5, 6), np.float32)).shape[1:]) == Vec3(4, 5, 6)
