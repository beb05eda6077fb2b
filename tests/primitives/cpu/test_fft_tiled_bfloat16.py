"""Tiled FFT convolution with spectra in bfloat16: rounding, errors, and use in plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layers import assert_accurate, random_case
from numpy.typing import NDArray
from tiled_convolutions import tiled_convolutions

from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.shapes import Shape5, Vec3
from znni.engine.tiles import make_job
from znni.inference import planning
from znni.inference.plan_checks import checked_plan
from znni.machine.detect import detect_machine
from znni.machine.machine import Device, Machine
from znni.machine.processor import PAIRS_PER_CYCLE
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.weights import Float32
from znni.plans.nominal_time import nominal_time
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter
from znni.primitives.cpu.fft_tiled.number_formats import BFLOAT16, FLOAT32, NumberFormat
from znni.primitives.cpu.fft_tiled.primitive import FftTiled, primitives

MACHINE = detect_machine(ram=4 << 30, threads=2)
DEVICE = MACHINE.host
WITH, WITHOUT = (
    Machine(replace(DEVICE, bfloat16=has, pairs_per_cycle=PAIRS_PER_CYCLE)) for has in (True, False)
)
NETWORK = Network.chain(
    "wide",
    1,
    (
        Conv("first", 1, 48, Vec3(3, 3, 3), "relu"),
        Pool("pool", Vec3(2, 2, 2)),
        Conv("second", 48, 48, Vec3(5, 5, 5), "relu"),
        Conv("third", 48, 2, Vec3(3, 3, 3), "softmax"),
    ),
)

has_instructions = pytest.mark.skipif(
    not DEVICE.bfloat16, reason="this processor has no AVX512_BF16"
)


def in_format(numbers: NumberFormat) -> list[FftTiled]:
    return [primitive for primitive in primitives(DEVICE) if primitive.numbers is numbers]


def bfloat16(tile: int, resident: bool = True) -> FftTiled:
    (found,) = (
        primitive
        for primitive in in_format(BFLOAT16)
        if (primitive.tile, primitive.resident) == (tile, resident)
    )
    return found


@cache
def _pair_kernel() -> Kernel:
    """Return a kernel that makes pairs of two vectors, takes them apart, and multiplies them."""
    emit = Emitter("pairs_and_parts", source=Argument.FLOATS, target=Argument.FLOATS)
    source, target = emit["source"], emit["target"]
    pairs = emit.pairs(emit.load(source), emit.load(emit.at(source, LANES)))
    other = emit.negate_seconds(emit.swap_pairs(pairs))
    results = (
        emit.firsts_of_pairs(pairs),
        emit.seconds_of_pairs(pairs),
        emit.firsts_of_pairs(other),
        emit.seconds_of_pairs(other),
        emit.multiply_add_pairs(pairs, other, emit.constant(1.0)),
    )
    for i, result in enumerate(results):
        emit.store(result, emit.at(target, i * LANES))
    return emit.compile()


def paired(firsts: Any, seconds: Any) -> tuple[Float32, ...]:
    """Return the kernel's five result vectors for two vectors."""
    source = np.array([firsts, seconds], np.float32)
    target = np.empty((5, LANES), np.float32)
    _pair_kernel()(source.ctypes.data, target.ctypes.data)
    return tuple(target)


def rounded(values: Float32) -> Float32:
    """Round to 8 significant bits, ties to even, by arithmetic on float64."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    nearest = np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)
    with np.errstate(over="ignore"):
        return nearest.astype(np.float32)


def normal(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace denormals by zeros of their sign, as the conversion does."""
    return np.where(abs(values) < np.finfo(np.float32).tiny, np.copysign(0, values), values)


numbers = st.lists(st.floats(width=32), min_size=LANES, max_size=LANES)


@has_instructions
@given(firsts=numbers, seconds=numbers)
def test_halves_of_pairs_are_rounded_to_nearest(firsts: list[float], seconds: list[float]) -> None:
    found = paired(firsts, seconds)
    for values, half in ((firsts, found[0]), (seconds, found[1])):
        np.testing.assert_array_equal(half, rounded(normal(np.array(values, np.float32))))


@has_instructions
def test_ties_go_to_even_and_what_is_no_number_stays_so() -> None:
    step = 2.0**-7  # of the numbers of 8 bits from 1 on
    cases = {
        1 + step / 2: 1.0,
        1 + 3 * step / 2: 1 + 2 * step,
        -1 - step / 2: -1.0,
        -1 - 3 * step / 2: -1 - 2 * step,
        1 + step * (0.5 + 2**-10): 1 + step,
        1 + step * (1.5 - 2**-10): 1 + step,
        2 - step / 4: 2.0,
        float(np.finfo(np.float32).max): np.inf,
        np.inf: np.inf,
        -np.inf: -np.inf,
        0.0: 0.0,
    }
    given_values = [*cases, *[np.nan] * (LANES - len(cases))]
    expected = [*cases.values(), *[np.nan] * (LANES - len(cases))]
    firsts, seconds, *_ = paired(given_values, given_values[::-1])
    np.testing.assert_array_equal(firsts, expected)
    np.testing.assert_array_equal(seconds, expected[::-1])
    signalling = np.full(LANES, 0x7F800001, np.uint32).view(np.float32)
    assert np.isnan(paired(signalling, signalling)[0]).all()


@has_instructions
def test_pairs_are_swapped_negated_and_multiplied() -> None:
    a, b = np.arange(LANES, dtype=np.float32), np.arange(LANES, dtype=np.float32)[::-1] - 4
    _, _, first, second, total = paired(a, b)
    np.testing.assert_array_equal(first, b)
    np.testing.assert_array_equal(second, -a)
    np.testing.assert_array_equal(total, 1 + a * b - b * a)
    *_, not_finite = paired([np.inf, np.nan, *a[2:]], b)
    assert not np.isfinite(not_finite[:2]).any()
    assert np.isfinite(not_finite[2:]).all()


@has_instructions
@tiled_convolutions
@pytest.mark.parametrize("resident", [True, False])
def test_convolution(tile: int, layer: Conv, shape: Shape5, resident: bool) -> None:
    assert_accurate(bfloat16(tile, resident), random_case(layer, shape))


@has_instructions
@pytest.mark.parametrize("kernel", [Vec3(3, 3, 3), Vec3(5, 5, 5), Vec3(7, 7, 7), Vec3(9, 9, 9)])
def test_the_error_is_that_of_three_roundings(kernel: Vec3) -> None:
    # Input, kernel and product are each rounded by 1.7e-3 root mean square, together by 2.9e-3.
    case = random_case(Conv("layer", 80, 16, kernel, "identity"), Shape5(1, 80, 12, 16, 14))
    case.weights.bias.fill(0)
    y, exact = (case.run(p) for p in (bfloat16(16), FftTiled(DEVICE, 16, resident=True)))
    error = np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))
    assert 2.5e-3 < error < 3.3e-3
    assert abs(y - exact).max() < 5e-3 * abs(exact).max()


@has_instructions
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_reaches_every_output_that_sees_it(value: float) -> None:
    case = random_case(Conv("layer", 3, 5, Vec3(3, 3, 3), "identity"), Shape5(1, 3, 8, 8, 30))
    clean = case.run(bfloat16(8))
    case.x[0, 1, 4, 4, 4] = value
    y = case.run(bfloat16(8))
    assert not np.isfinite(y[..., 2:5, 2:5, 2:5]).any()
    np.testing.assert_array_equal(y[..., 12:], clean[..., 12:])  # other tiles


@has_instructions
def test_several_batches_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case(Conv("layer", 3, 4, Vec3(3, 3, 3), "relu"), Shape5(2, 3, 15, 16, 17))
    whole = case.run(bfloat16(8))
    monkeypatch.setattr("znni.primitives.cpu.fft_tiled.tile_batches.BATCH_TILES", 5)
    np.testing.assert_allclose(case.run(bfloat16(8)), whole, rtol=1e-5, atol=1e-5)


def test_products_take_as_long_as_the_processors_multiplication_of_pairs() -> None:
    layer, shape = Conv("layer", 80, 80, Vec3(3, 3, 3), "relu"), Shape5(1, 80, 66, 66, 66)
    halves = replace(WITH.host, pairs_per_cycle=PAIRS_PER_CYCLE / 2)

    def seconds(device: Device, numbers: NumberFormat) -> float:
        primitive = FftTiled(device, 16, resident=True, numbers=numbers)
        return nominal_time(primitive, primitive.cost(layer, shape))

    assert seconds(halves, FLOAT32) == seconds(WITH.host, FLOAT32)
    assert seconds(WITH.host, BFLOAT16) < 0.8 * seconds(WITH.host, FLOAT32)
    assert seconds(halves, BFLOAT16) > 1.3 * seconds(WITH.host, BFLOAT16)


@has_instructions
def test_spectra_take_half_the_memory() -> None:
    layer, shape = Conv("layer", 48, 80, Vec3(3, 3, 3), "relu"), Shape5(1, 48, 30, 30, 30)
    half, whole = (
        p.cost(layer, shape) for p in (bfloat16(16), FftTiled(DEVICE, 16, resident=True))
    )
    assert half.memory.resident == pytest.approx(whole.memory.resident / 2, rel=1e-3)
    images = shape.nbytes + shape._replace(f=80, z=28, y=28, x=28).nbytes
    assert half.memory.working - images == pytest.approx((whole.memory.working - images) / 2, 0.1)
    assert half.bytes_moved < whole.bytes_moved
    assert half.flops < whole.flops


@has_instructions
def test_names_are_those_of_float32_with_the_format() -> None:
    assert [p.name for p in in_format(BFLOAT16)] == [
        p.name.replace(f"_{p.tile}", f"_{p.tile}_bfloat16") for p in in_format(FLOAT32)
    ]
    assert bfloat16(12, resident=False).name == "fft_tiled_12_bfloat16_transient"


def plan_of(accuracy: Any, machine: Machine) -> Plan:
    return planning.plan(NETWORK, (60, 60, 60), machine=machine, ram="2GiB", accuracy=accuracy)


def planned(accuracy: Any, machine: Machine = WITH) -> tuple[set[str], str]:
    """Return the primitives of a plan, and its note on accuracy."""
    plan = plan_of(accuracy, machine)
    names = {str(step.primitive) for segment in plan.segments for step in segment.steps}
    return names, planning.accuracy_note(plan, accuracy)


def test_only_those_who_ask_get_it() -> None:
    names, note = planned("float32")
    assert not any("bfloat16" in name for name in names)
    assert note == ""
    names, note = planned("bfloat16")
    assert any("bfloat16" in name for name in names)
    assert note.startswith("bfloat16 in ")
    assert "second" in note


def test_without_the_instructions_plans_are_float32_and_say_so() -> None:
    assert not any("bfloat16" in name for name in catalogue(WITHOUT))
    names, note = planned("bfloat16", WITHOUT)
    assert names == planned("float32", WITHOUT)[0]
    assert note == "float32: bfloat16 is allowed, and the processor has no instructions for it"


def test_a_plan_for_a_machine_with_the_instructions_runs_on_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("bfloat16", WITH)
    assert planning.accuracy_note(plan, "bfloat16").startswith("bfloat16 in ")
    monkeypatch.setattr("znni.inference.plan_checks.detect_for", lambda *_: WITHOUT)
    with pytest.raises(InvalidInput, match=r"fft_tiled_\d+_bfloat16.* this machine does not have"):
        checked_plan(plan, NETWORK, Choices(accuracy="bfloat16"))
    monkeypatch.setattr("znni.inference.plan_checks.detect_for", lambda *_: WITH)
    job = make_job(NETWORK, Vec3.of(60), "valid", "reflect", None)
    assert checked_plan(plan, NETWORK, Choices(accuracy="bfloat16"), job=job) == plan
