"""Whole blocks of MedNeXt as one step give what their layers give."""

from __future__ import annotations

import pytest
from emulated_gpu import needs_emulation
from packed_rules import operations_by

from znni.core.option_types import Accuracy
from znni.core.shapes import Vec3
from znni.network.layers import ConvPair, ConvTranspose, SummedConv, SummedConvPair
from znni.network.network_file import network_from_text
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.rewrites.packed_rules import RULES

WIDE = """\
name: wide
layers:
  - conv: {features: 16, kernel: 3, padding: same}
  - conv: {features: 16, kernel: 3, padding: same, groups: 16}
  - instance_norm: {}
  - conv: {features: 40, kernel: 1, activation: gelu}
  - conv: {features: 16, kernel: 1}
  - name: skip
    add: {}
    from: [conv4, conv1]
  - conv: {features: 16, kernel: 3, padding: same, groups: 16}
  - instance_norm: {}
  - conv: {features: 32, kernel: 1, activation: gelu_tanh}
  - conv: {features: 16, kernel: 1}
  - pool: {window: 2, stride: 2}
  - conv_transpose: {features: 16, kernel: 3, stride: 2, padding: 1, output_padding: 1, groups: 16}
  - instance_norm: {}
  - conv: {features: 32, kernel: 1, activation: gelu}
  - conv: {features: 16, kernel: 1}
  - add: {}
    from: [conv9, skip]
  - conv: {features: 3, kernel: 1}
"""
BLOCK = "conv3", "conv4", "skip"


def test_a_block_is_one_step_if_nobody_else_takes_its_values() -> None:
    network = network_from_text(WIDE, "wide")
    found = fusions(network)
    assert isinstance(found[BLOCK].operation, SummedConvPair)
    assert found[BLOCK].overwrites == "conv1"
    assert next(iter(found)) == BLOCK, "three layers are tried before two of them"
    assert isinstance(found["conv6", "conv7"].operation, ConvPair)
    other = network_from_text(WIDE.replace("[conv9, skip]", "[conv9, conv1]"), "wide")
    assert BLOCK not in fusions(other), "conv1 is still needed"


@pytest.mark.slow
@needs_emulation
def test_blocks_of_one_step_give_what_their_layers_give() -> None:
    steps = {it.name: it for it in operations_by(RULES, WIDE, "tf32")}
    for name in ("+".join(BLOCK), "conv6+conv7", "conv8+conv9"):
        assert steps[name].norm
    assert all(it.sums for it in steps.values() if isinstance(it.layer, ConvTranspose))


# A level of MedNeXt's decoder. The shortcut comes between the layers of a step. The norm leaves out
# a plane, a row and a column that the transposed convolution computes. A padding ends in a sum.
HIGHER = """\
name: higher
layers:
  - conv: {features: 16, kernel: 3, padding: same}
  - conv: {features: 16, kernel: 1, stride: 2}
  - conv_transpose: {features: 16, kernel: 3, stride: 2, padding: 1, groups: 16}
  - instance_norm: {}
  - conv: {features: 32, kernel: 1, activation: gelu}
  - conv: {features: 16, kernel: 1}
  - name: shortcut
    conv_transpose: {features: 16, kernel: 1, stride: 2}
    from: [conv2]
  - name: both
    add: {}
    from: [conv4, shortcut]
  - name: padded
    conv: {features: 16, kernel: 1, padding: {before: [1, 1, 1], after: [0, 0, 0]}, groups: 16}
  - name: sum
    add: {}
    from: [padded, conv1]
  - conv: {features: 16, kernel: 3, padding: same, groups: 16}
  - conv: {features: 3, kernel: 1}
"""

# Of a smaller window, the norm would leave out too large a part to lie where its input does.
SIZE = Vec3(12, 16, 24)


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("accuracy", ["tf32", "float32"])
def test_a_level_of_a_decoder_gives_what_its_layers_give(accuracy: Accuracy) -> None:
    steps = {it.name: it for it in operations_by(RULES, HIGHER, accuracy, SIZE)}
    assert steps["conv3+conv4+both"].norm
    assert isinstance(steps["padded+sum"].layer, SummedConv)
    (up,) = (it for it in steps.values() if it.sums and isinstance(it.layer, ConvTranspose))
    assert up.left_out == Vec3(1, 1, 1)


def test_a_layer_between_those_of_a_step_takes_nothing_of_theirs() -> None:
    chain = "conv3", "conv4", "both"
    assert fusions(network_from_text(HIGHER, "higher"))[chain].overwrites == "shortcut"
    spoilt = HIGHER.replace(
        "conv_transpose: {features: 16, kernel: 1, stride: 2}\n    from: [conv2]",
        "conv: {features: 16, kernel: 1, activation: elu}\n    from: [instance_norm1]",
    )
    assert chain not in fusions(network_from_text(spoilt, "higher"))
