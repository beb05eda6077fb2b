"""Convolutions that add up their maps for the norms after them give what the norms alone give."""

from __future__ import annotations

import pytest
from emulated_gpu import needs_emulation
from packed_rules import operations_by

from znni.plans.rewrites import summing_norm


@pytest.mark.slow
@needs_emulation
def test_norms_with_sums_give_what_norms_alone_give() -> None:
    alone, summing = operations_by([]), operations_by([summing_norm])
    assert not any(it.sums for it in alone)
    names = ["conv1", "instance_norm1", "conv2", "instance_norm2"]
    assert [it.name for it in summing if it.sums] == names
    assert [it.layer for it in summing] == [it.layer for it in alone]
