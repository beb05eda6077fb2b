"""A network or weights that cannot be run give a one-line error and no output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import INFER, rewrite
from command_line import refused_without_trace as refused

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def change_weights(**changes: np.ndarray | None) -> None:
    arrays = dict(np.load("tiny.npz")) | {k.replace("_", "."): v for k, v in changes.items()}
    np.savez("tiny.npz", **{name: a for name, a in arrays.items() if a is not None})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kernel: [2, 3, 3]", "kernal: [2, 3, 3]", "line 5: unknown key 'kernal'"),
        ("features: 3", "features: 4", "layer conv1: weight has shape (3, 1, 2, 3, 3)"),
        ("weights: tiny.npz", "", "--random-weights"),
        ("tiny.npz", "other.npz", "other.npz: no such weights file"),
    ],
)
def test_networks(old: str, new: str, said: str) -> None:
    rewrite("tiny.yaml", old, new)
    assert said in refused(*INFER)


def test_a_field_of_view_larger_than_the_volume() -> None:
    rewrite("tiny.yaml", "[2, 3, 3]", "[9, 3, 3]")
    rewrite("tiny.yaml", "weights: tiny.npz", "")
    message = refused(*INFER, "--random-weights", 1)
    assert "7x20x23 voxels, smaller than network tiny's field of view 9x6x8" in message


def test_weights() -> None:
    change_weights(conv1_bias=np.full(3, np.nan, np.float32))
    assert "layer conv1: bias has 3 values not finite" in refused(*INFER)
    change_weights(conv1_bias=None)
    assert "lacks 'conv1.bias'" in refused(*INFER)
    change_weights(conv1_bias=np.zeros(3), conv9_bias=np.zeros(3))
    assert "holds 'conv9.bias'" in refused(*INFER)
    Path("tiny.npz").write_bytes(b"")
    assert "tiny.npz: cannot be read" in refused(*INFER)
    assert "both" in refused(*INFER, "--random-weights", 1, "--weights", "tiny.npz")
