"""Layers that apply the norms before them give what the norms alone give."""

from __future__ import annotations

import pytest
from emulated_gpu import needs_emulation
from packed_rules import operations_by

from znni.plans.rewrites import deferred_norm


@pytest.mark.slow
@needs_emulation
def test_norms_that_are_left_give_what_norms_alone_give() -> None:
    alone, left = operations_by([]), operations_by([deferred_norm])
    assert not any(it.leaves or it.norm for it in alone)
    assert [it.name for it in left if it.leaves] == ["instance_norm2"]
    assert [(it.name, it.norm.name) for it in left if it.norm] == [("head", "instance_norm2")]
    assert [it.layer for it in left] == [it.layer for it in alone]
