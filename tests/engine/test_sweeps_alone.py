"""Networks that fit the memory as a sweep alone: no block of them does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stopped_runs import Counting
from test_tiled_sweeps import OPTIONS
from unet_text import UNET

from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Box, Vec3
from znni.engine.tiles import for_job, make_job
from znni.inference.planning import search
from znni.machine.arrays import peak_memory
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.primitives.catalogue import catalogue
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import output_at_once

# Many maps, so that arrays are larger than what the allocator may add.
WIDE = UNET.replace("features: 4", "features: 32").replace("features: 8", "features: 64")
DEEP = "name: deep\nlayers:\n" + 15 * "  - conv: {features: 64, kernel: 3, activation: relu}\n"
NETWORKS = {"wide": (WIDE, Vec3(16, 4, 4), 20), "deep": (DEEP, Vec3(12, 2, 2), 15)}

# What the allocator, the interpreter and huge pages (2 MiB each) may add or hide, once.
SLACK = 3 * 2**20


class Case:
    """A network and its job: a part of a volume.

    Attributes:
        search: the search for plans.
    """

    def __init__(self, name: str) -> None:
        text, wanted, around = NETWORKS[name]
        self.network = network_from_text(text, name)
        size = wanted + 2 * around
        self.options: dict[str, Any] = {"roi": Box(Vec3.of(around), wanted + around)}
        self.search = search(self.network, size, **self.options, **OPTIONS)
        self.volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)

    @property
    def expected(self) -> Float64:
        """The reference's output for the job."""
        job = make_job(self.network, Vec3(*self.volume.shape[1:]), "valid", None, **self.options)
        placed = for_job(self.network, job)
        whole = output_at_once(placed, random_weights(self.network, 7), self.volume)
        return whole[:, *Box(job.first, job.first + job.output).slices]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sweep_is_found_if_no_block_fits(name: str) -> None:
    case = Case(name)
    found, blocks = case.search, replace(case.search, sweeps=False)
    swept, block = found.smallest(), blocks.smallest()
    limit = (swept.memory.total + block.memory.total) // 2
    with pytest.raises(DoesNotFit) as refused:
        blocks.within(limit).fastest()
    assert refused.value.needed == block.memory.total
    with pytest.raises(DoesNotFit) as refused:
        found.within(swept.memory.total - 1).fastest()
    assert refused.value.needed == swept.memory.total
    said = f"output voxels, in a sweep along {swept.network.swept_along}) needs"
    assert said in str(refused.value)
    assert said in str(refused.value.beside(1))

    plan = found.within(limit).fastest()[0]
    assert plan.is_swept
    assert plan.memory.total <= limit < block.memory.total
    able, expected = catalogue(plan.machine), case.expected
    runs = Counting(plan.network, plan, case.volume, able, **case.options)
    begun = runs.run(blocks=1)  # compiles
    with peak_memory() as peak:
        runs.run(finished=begun)
    assert peak.added <= plan.memory.total - plan.memory.process + SLACK
    np.testing.assert_allclose(runs.values, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
