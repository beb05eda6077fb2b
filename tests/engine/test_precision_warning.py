"""Tests of the warning about integers that are too large."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from znni.core.shapes import Box, Vec3
from znni.engine.reading import read_input
from znni.engine.tiles import Job, make_job
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv
from znni.network.network import Network
from znni.primitives.reference import activation
from znni.volumes.array import ArrayVolume


@pytest.mark.parametrize(
    ("dtype", "value", "warns"),
    [
        ("int64", 2**53 + 1, True),
        ("int64", -(2**63), True),
        ("uint64", 2**64 - 1, True),
        ("int64", 2**53, False),
        ("int64", -(2**53), False),
        ("uint32", 2**32 - 1, False),
        ("float64", 2.0**60, False),
    ],
)
def test_integers_beyond_what_floats_hold(
    dtype: Any, value: float, *, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.zeros((4, 5, 6), dtype)
    values[1, 2, 3] = value
    volume = ArrayVolume(values)
    job = whole_job(volume)
    with caplog.at_level(logging.WARNING, "znni"):
        for _ in range(2):
            read_input(volume, job, Box(Vec3(0, 0, 0), volume.size), InputScaling())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == int(warns)
    if warns:
        assert f"integers beyond 2^53, such as {int(value)}: the network sees" in said[0]


def whole_job(volume: ArrayVolume) -> Job:
    network = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(1, 1, 1), "relu"),))
    return make_job(network, volume.size, "valid", "reflect", None)


def test_sigmoids_of_huge_values_say_nothing() -> None:
    huge = np.array([-1e5, 0, 1e5]).reshape(1, 1, 1, 1, 3)
    np.testing.assert_array_equal(activation(huge, "sigmoid").ravel(), [0, 0.5, 1])
