"""A network or weights that cannot be run give a one-line error and no output."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import INFER, rewrite
from command_line import refused_without_trace as refused

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kernel: [2, 3, 3]", "kernal: [2, 3, 3]", "line 5: unknown key 'kernal'"),
        ("features: 3", "features: 4", "layer conv1: weight has shape (3, 1, 2, 3, 3)"),
        ("weights: tiny.npz", "", "--random-weights"),
        ("tiny.npz", "other.npz", "network tiny names the weights other.npz, and there is no "),
        ("tiny.npz", "volume.h5", "volume.h5: lacks 'conv1.bias'"),
    ],
)
def test_networks(old: str, new: str, said: str) -> None:
    rewrite("tiny.yaml", old, new)
    assert said in refused(*INFER)


def test_a_field_of_view_larger_than_the_volume() -> None:
    rewrite("tiny.yaml", "[2, 3, 3]", "[9, 3, 3]")
    rewrite("tiny.yaml", "weights: tiny.npz", "")
    message = refused(*INFER, "--random-weights", 1)
    assert "7x20x23 voxels, smaller than the field of view 9x6x8 of network tiny" in message


def test_networks_of_other_libraries_are_imported_first() -> None:
    Path("model.zip").write_bytes(b"PK")
    Path("package").mkdir()
    Path("package/rdf.yaml").write_text("type: model\n")
    for name in ("model.zip", "package"):
        assert f"first: znni import {name} --out NET.yaml" in refused("info", name)
        said = refused("infer", "volume.h5", "--net", name, "--out", "out.h5")
        assert f"is to be imported first; run znni import {name}" in said
    Path("results").mkdir()
    Path("results/plans.json").write_text("{}")
    said = refused("plan", "--net", "results", "--volume", "9,9,9")
    assert said.endswith("znni infer SCAN --net results --dry-run")
