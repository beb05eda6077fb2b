"""Volumes with values of another range than those that a network was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import znni
from znni.core.shapes import Box, Vec3
from znni.inference.value_range import warn_of_range

SHAPE = (5, 70, 80)
PART = Box(Vec3(1, 0, 0), Vec3(5, 70, 80))


@pytest.mark.parametrize(
    ("dtype", "largest", "warned"),
    [
        ("uint8", 255, False),
        ("uint16", 4000, True),
        ("uint16", 200, False),
        ("float32", 1, True),
        ("float32", 0, False),
        ("float64", 255, False),
        ("float64", np.nan, False),
    ],
)
def test_a_warning_says_the_largest_value(
    dtype: str, largest: Any, *, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    values = np.zeros(SHAPE, dtype)
    values[2, 40, 40] = largest  # in the plane in the middle
    warn_of_range(znni.open_volume(values), znni.load_network("boundaries"), PART)
    assert [f"has values up to {largest} in its middle" in text for text in caplog.messages] == [
        True
    ] * warned


@pytest.mark.parametrize(
    ("divisor", "dtype", "largest", "warned"),
    [
        (65535, "uint8", 255, True),
        (65535, "uint16", 200, False),
        (65535, "float32", 1, True),
        (4095, "uint16", 4096, True),
        (4095, "uint16", 4095, False),
        (100, "uint16", 4095, False),
    ],
)
def test_networks_for_more_bits_warn_of_fewer(
    divisor: int, dtype: str, largest: float, *, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    network = znni.load_network("boundaries")
    network = network.scaled_by(replace(network.scaling, scale=1 / divisor))
    warn_of_range(znni.open_volume(np.full(SHAPE, largest, dtype)), network, PART)
    assert [f"as {dtype}, and network" in text for text in caplog.messages] == [True] * warned


def test_networks_that_do_not_divide_say_nothing_say_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = np.full(SHAPE, 4000, np.uint16)
    warn_of_range(znni.open_volume(values), znni.load_network("n726"), PART)
    assert not caplog.messages


def test_a_run_warns(caplog: pytest.LogCaptureFixture) -> None:
    values = np.full((40, 40, 40), 4000, np.uint16)
    out = np.empty((1, 6, 6, 6), np.float32)
    znni.infer(values, "boundaries", out, ram="4GiB", device="cpu", costs="built-in")
    (said,) = caplog.messages
    assert (
        "has values up to 4000 in its middle, as uint16, and network boundaries divides them by 255"
        in said
    )
