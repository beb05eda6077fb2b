"""The code that GPU primitives share, as far as it can be tested without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_layers import DEVICE
from paths import MACHINES

from znni.core.shapes import Shape5, Vec3
from znni.machine.machine_file import load_machine
from znni.network.layers import Activation, Conv
from znni.primitives import reference
from znni.primitives.gpu.common.activation import EXPRESSIONS, activation_source
from znni.primitives.gpu.common.hardware import chip_of
from znni.primitives.gpu.common.kernels import strides_in_elements
from znni.primitives.gpu.cudnn import primitive as cudnn


@pytest.mark.slow
def test_strides_count_elements_of_views_too() -> None:
    whole = np.zeros((2, 3, 5, 7, 11), np.float32)
    assert strides_in_elements(whole) == [1155, 385, 77, 11]
    assert strides_in_elements(whole[:, 1:, ::2, 2:, 4:]) == [1155, 385, 154, 11]
    assert strides_in_elements(whole[0].astype(np.float64)) == [385, 77, 11]
    assert all(isinstance(stride, np.int64) for stride in strides_in_elements(whole))


@pytest.mark.parametrize("activation", sorted({*EXPRESSIONS} - {"softmax"}))
def test_some_activations_keep_the_unit_of_a_sum(activation: Activation) -> None:
    x, factor = np.linspace(-3, 3, 61).reshape(1, 1, 1, 1, 61), 2.0**-9
    made, scaled = (reference.activation(it, activation) for it in (x, factor * x))
    keeps_unit = np.array_equal(scaled, factor * made)
    assert f"KEEPS_UNIT = {str(keeps_unit).lower()};" in activation_source(activation)


@pytest.mark.parametrize(
    ("name", "capability", "rate"),
    [
        ("NVIDIA GeForce RTX 4090", 89, 512),
        ("NVIDIA L40S", 89, 1024),
        ("NVIDIA GeForce RTX 3090", 86, 512),
        ("NVIDIA RTX A6000", 86, 1024),
        ("NVIDIA A100 80 GB", 80, 2048),
        ("NVIDIA GeForce RTX 5090", 120, 512),
    ],
)
def test_tensor_cores_of_gpus_for_games_have_half_of_the_rate(
    name: str, capability: int, rate: int
) -> None:
    chip = chip_of(replace(DEVICE, name=name, capability=capability))
    assert chip is not None
    assert chip.tensor_flops == rate


@pytest.mark.parametrize(
    ("file", "float16"),
    [("a100-80", 312e12), ("rtx4090", 165e12), ("rtx3090", 71e12), ("l40s", 362e12),
     ("rtx5090", 209e12), ("b200", 2250e12)],
)  # fmt: skip
def test_rates_of_tensor_cores_are_those_of_data_sheets(file: str, float16: float) -> None:
    """Dense products in float16 with sums in float32; cycles are those of the float32 rate."""
    (gpu,) = load_machine(MACHINES / f"{file}.yaml").gpus
    chip = chip_of(gpu)
    assert chip is not None
    rate = max(chip.tensor_flops, chip.own_tensor_flops) * gpu.flops / chip.cycle_flops
    assert rate == pytest.approx(float16, rel=0.1)


def test_libraries_reach_the_same_share_of_any_chips_tensor_cores() -> None:
    conv, shape = Conv("hidden", 80, 80, Vec3(3, 3, 3), "relu"), Shape5.of(8, 80, Vec3.of(34))

    def share(name: str, capability: int, numbers: str) -> float:
        device = replace(DEVICE, name=name, capability=capability, cudnn=True)
        found = {p.name: p for p in cudnn.primitives(device)}
        return found[f"gpu_cudnn_{numbers}"].cost(conv, shape).efficiency

    assert share("NVIDIA H100", 90, "tf32") == pytest.approx(2.0)
    # 312 Tflop/s of 19.5 in float32, 165 of 82.6
    assert share("NVIDIA A100", 80, "tf32") == pytest.approx(2.0 * 16 / (4096 / 298))
    assert share("NVIDIA GeForce RTX 4090", 89, "tf32") == pytest.approx(2.0 * 2 / (4096 / 298))
    assert share("NVIDIA GeForce RTX 4090", 89, "float32") == share("NVIDIA H100", 90, "float32")
