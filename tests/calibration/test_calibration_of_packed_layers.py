"""Layers of packed values are calibrated as others are, on an emulated GPU."""

from __future__ import annotations

import pytest
from emulated_gpu import EMULATED, emulated_gpu, needs_emulation

from znni.calibration import device_measure
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5, Vec3
from znni.machine.packed_arrays import PackedArray
from znni.machine.timing import Timing
from znni.network.layers import Add, Conv, Layer, PackedLayer, SummedConv
from znni.primitives.gpu.packed.primitive import primitives

pytestmark = needs_emulation


def once(run: object, repeats: int) -> Timing:
    """Run a call once instead of timing it."""
    assert callable(run)
    run()
    return Timing((1.0,) * repeats)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("layer", "maps"),
    [
        (Conv("conv", 16, 8, Vec3(2, 2, 2), "relu"), 16),
        (Conv("conv", 1, 8, Vec3(2, 2, 2), "relu"), 1),
        (Add("add", "relu"), 16),
    ],
    ids=["packed", "first", "join"],
)
def test_packed_calls_are_measured(
    layer: Layer, maps: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_measure, "timed_on_device", once)
    call = Call(layer, Shape5(1, maps, 4, 5, 9)).packed(parts)
    able = [it for it in primitives(EMULATED) if it.out_shape(*call)]
    assert able
    with emulated_gpu():
        calls = [(it, call) for it in able]
        bench = DeviceWorkbench(calls)
        assert [bench.measure(it, call, 2).median for it in able] == [1.0] * len(able)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_sum_is_measured_where_a_run_has_it(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def lies_with(one: PackedArray, two: PackedArray) -> bool:
        in_place.append(compared(one, two))
        return in_place[-1]

    in_place: list[bool] = []
    compared = PackedArray.lies_with
    monkeypatch.setattr(PackedArray, "lies_with", lies_with)
    monkeypatch.setattr(device_measure, "timed_on_device", once)
    summed = SummedConv(Conv("conv", 16, 8, Vec3(2, 2, 2), "identity"), Add("add", "relu"))
    packed = PackedLayer(summed, reads=True, writes=True, parts=parts)
    call = Call(packed, Shape5(1, 16, 4, 5, 9))
    able = [it for it in primitives(EMULATED) if it.out_shape(*call)]
    assert able
    with emulated_gpu():
        bench = DeviceWorkbench([(it, call) for it in able])
        for primitive in able:
            bench.measure(primitive, call, 2)
    assert in_place == [True] * len(able)
