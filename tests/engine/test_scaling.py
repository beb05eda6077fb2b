"""Blocks that stay as they are stored until a GPU scales them: the same numbers as by the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation
from fake_cupy import HostScaling
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_networks import chain
from window_networks import network as windowed

from znni.core.option_types import Pad
from znni.core.shapes import Box, Vec3
from znni.engine.backends.cuda.scaling import DeviceScaling, numbers_of
from znni.engine.block_reader import constant_input, is_constant
from znni.engine.reading import read_input, read_stored
from znni.engine.scaling import fixed_of_maps, scaled_on_gpu
from znni.engine.tiles import Job
from znni.machine.cuda import cupy
from znni.network.input_scaling import Fixed, InputScaling, Percentiles, ZScore
from znni.network.window import Window
from znni.volumes.array import ArrayVolume

SIZE = Vec3(5, 6, 7)
TYPES = ("uint8", "int8", "uint16", "int16")
CROPPED = InputScaling(
    normalize=(Fixed(3.0, 2.5), Fixed(-1.0, 5.0)),
    crop="nonzero",
    box=Box(Vec3(1, 0, 2), Vec3(4, 6, 5)),
)
SCALINGS = [
    InputScaling(),
    InputScaling(scale=1 / 3, offset=-0.7),
    InputScaling(scale=-1.0),
    InputScaling(normalize=(Fixed(30.0, 7.0, (-40.0, 60.0)), Fixed(1.0, 0.3))),
    CROPPED,
]
NETWORK = chain(("conv", 2), ("conv", 2))


def volume_of(dtype: str, seed: int = 0) -> NDArray[Any]:
    """A volume of all values that a type has, or many of them."""
    ends = np.iinfo(dtype)
    numbers = np.random.default_rng(seed)
    return numbers.integers(ends.min, ends.max, (2, *SIZE), dtype, endpoint=True)


def job(pad: Pad, whole: Vec3 | None = None) -> Job:
    return Job(SIZE, Vec3(-2, 0, -1), SIZE, Vec3(0, 0, 0), pad, whole)


jobs = st.builds(
    job,
    st.sampled_from(("reflect", "edge", "constant")),
    st.sampled_from((None, Vec3(9, 6, 8), Vec3(4, 5, 3))),
)
boxes = st.builds(
    lambda start, size: Box(Vec3(*start), Vec3(*start) + Vec3(*size)),
    st.tuples(*[st.integers(-4, 6)] * 3),
    st.tuples(*[st.integers(1, 11)] * 3),
)


@settings(max_examples=60)
@given(jobs, boxes, st.sampled_from(SCALINGS), st.sampled_from((*TYPES, ">u2")))
def test_stored_values_become_what_the_host_reads(
    job: Job, box: Box, scaling: InputScaling, dtype: str
) -> None:
    volume = ArrayVolume(volume_of(np.dtype(dtype).name).astype(dtype))
    stored, left = read_stored(volume, job, box, scaling)
    assert stored.dtype == np.dtype(dtype).newbyteorder("=")
    read = read_input(volume, job, box, scaling)
    found = np.empty((1, *stored.shape), np.float32)
    HostScaling(2, stored.itemsize)(stored[None], left, found)
    np.testing.assert_array_equal(found[0], read)


@settings(max_examples=50)
@given(jobs, boxes, st.sampled_from(SCALINGS), st.sampled_from((0, 3, 70)), st.booleans())
@example(  # both values are clipped to one
    job=job("edge"), box=Box(Vec3(0, 0, 0), SIZE), scaling=SCALINGS[3], value=70, differs=True
)
def test_a_block_of_stored_values_is_constant_if_what_the_network_sees_is(
    job: Job, box: Box, scaling: InputScaling, value: int, differs: bool
) -> None:
    x = np.full((2, *SIZE), value, np.uint8)
    x[0, 2, 3, 4] += differs
    stored, left = read_stored(ArrayVolume(x), job, box, scaling)
    read = read_input(ArrayVolume(x), job, box, scaling)
    found = constant_input(stored, left)
    if found is None:
        assert not is_constant(read)
    else:
        np.testing.assert_array_equal(np.broadcast_to(found[:, None, None, None], read.shape), read)


@pytest.mark.slow_cases
@needs_emulation
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_the_kernel_scales_to_the_bits_of_the_host(dtype: str, scaling: InputScaling) -> None:
    box = Box(Vec3(-1, -2, -3), Vec3(5, 7, 80))
    volume = ArrayVolume(volume_of(dtype))
    for order in ORDERS:
        with emulated_gpu(order):
            on_gpu = DeviceScaling(2, volume.itemsize)
            for pad in ("constant", "reflect"):
                stored, left = read_stored(volume, job(pad), box, scaling)
                made = cupy().empty((1, *stored.shape), np.float32)
                on_gpu(cupy().asarray(stored[None]), left, made)
                read = read_input(volume, job(pad), box, scaling)
                np.testing.assert_array_equal(made.get()[0].view(np.uint32), read.view(np.uint32))


def test_limits_beyond_float32_clip_nothing() -> None:
    scaling = InputScaling(normalize=(Fixed(3.0, 2.0, (-1e300, 1e300)),))
    numbers = numbers_of(scaling, fixed_of_maps(scaling, 1))
    np.testing.assert_array_equal(numbers, [[-np.inf, np.inf, 3, 2]])


@needs_emulation
def test_one_kernel_scales_by_the_numbers_of_one_volume_after_another() -> None:
    volume, box = ArrayVolume(volume_of("uint8")), Box(Vec3(0, 0, 0), SIZE)
    with emulated_gpu():
        on_gpu = DeviceScaling(2, 1)
        for scaling in (SCALINGS[1], SCALINGS[3], SCALINGS[1]):
            stored, left = read_stored(volume, job("edge"), box, scaling)
            made = cupy().empty((1, *stored.shape), np.float32)
            on_gpu(cupy().asarray(stored[None]), left, made)
            np.testing.assert_array_equal(
                made.get()[0], read_input(volume, job("edge"), box, scaling)
            )


@pytest.mark.parametrize(
    ("dtype", "scaling", "expected"),
    [
        ("uint8", InputScaling(), True),
        ("int16", InputScaling(scale=1e-3), True),
        ("uint32", InputScaling(), False),
        ("float16", InputScaling(), False),
        ("bool", InputScaling(), False),
        ("uint16", InputScaling(scale=1e38), False),
        ("uint16", InputScaling(normalize=(ZScore(),)), True),
        ("uint16", InputScaling(normalize=(ZScore(),), within="nonzero"), False),
        ("uint8", InputScaling(normalize=(Percentiles(1, 99),), statistics=(Fixed(3, 5),)), True),
        ("uint8", InputScaling(normalize=(Fixed(3, 2.0**-126),)), False),
    ],
)
def test_small_integers_that_stay_finite_are_scaled_on_a_gpu(
    dtype: str, scaling: InputScaling, expected: bool
) -> None:
    network = replace(NETWORK, scaling=scaling)
    assert scaled_on_gpu(network, np.dtype(dtype)) == expected


def test_windows_are_cut_out_of_what_the_host_has_scaled() -> None:
    network = windowed(Window(Vec3(8, 8, 8)))
    assert not scaled_on_gpu(network, np.dtype(np.uint8))


def test_each_map_has_numbers_of_its_own_or_none() -> None:
    assert fixed_of_maps(InputScaling(), 3) == (None, None, None)
    assert fixed_of_maps(CROPPED, 2) == CROPPED.normalize
