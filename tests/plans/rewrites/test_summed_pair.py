"""Whole blocks of MedNeXt as one step give what their layers give."""

from __future__ import annotations

import pytest
from emulated_gpu import needs_emulation
from packed_rules import operations_by

from znni.network.layers import ConvPair, ConvTranspose, SummedConvPair
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
