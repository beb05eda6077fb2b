"""Layers of packed values are calibrated as others are, on an emulated GPU."""

from __future__ import annotations

import pytest
from emulated_gpu import EMULATED, emulated_gpu, needs_emulation

from znni.calibration import device_measure
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5, Vec3
from znni.machine.timing import Timing
from znni.network.layers import Add, Conv, Layer
from znni.primitives.gpu.packed.primitive import primitives

pytestmark = needs_emulation


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
    def once(run: object, repeats: int) -> Timing:
        assert callable(run)
        run()
        return Timing((1.0,) * repeats)

    monkeypatch.setattr(device_measure, "timed_on_device", once)
    call = Call(layer, Shape5(1, maps, 4, 5, 9)).packed(parts)
    able = [it for it in primitives(EMULATED) if it.out_shape(*call)]
    assert able
    with emulated_gpu():
        calls = [(it, call) for it in able]
        bench = DeviceWorkbench(calls)
        assert [bench.measure(it, call, 2).median for it in able] == [1.0] * len(able)
