"""Blocks are predicted to read what lies within the volume, wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from fake_stages import stage_in, time_of
from paths import NETWORKS

import znni
from planner.job_places import box_read
from planner.overhead import Load
from znni.core.option_types import Border, WindowRules
from znni.core.shapes import Box, Vec3
from znni.engine.stages.read import ReadModel
from znni.engine.tiles import make_job
from znni.network.geometry import with_window
from znni.network.network_file import load_network
from znni.network.window import Window
from znni.plans.stored_values import InputChunks

VOLUME = Vec3(90, 120, 70)
CHUNK = Vec3(16, 32, 64)
HERE: Any = {"device": "cpu", "costs": "built-in"}


@pytest.mark.slow_cases
@pytest.mark.parametrize("net", ["boundaries", "cells-unet"])
@pytest.mark.parametrize("border", ["valid", "same"])
@pytest.mark.parametrize("roi", [None, np.s_[:71, :, :40]])
def test_blocks_count_what_they_read_of_the_volume(net: str, border: Border, roi: Any) -> None:
    network = load_network(NETWORKS / f"{net}.yaml")
    search = znni.search(network, VOLUME, border=border, roi=roi, **HERE)
    job = make_job(network, VOLUME, border, None, roi)
    chunks = InputChunks("hdf5", None, CHUNK, VOLUME)
    plain = search.overhead
    stored = replace(plain.stored, input_chunks=chunks)
    read = replace(stage_in(plain, ReadModel), chunk=1e-3)
    rest = tuple(it for it in plain.stages if not isinstance(it, ReadModel))
    chunked = replace(plain, stored=stored, stages=(read, *rest))
    tried = list(search.patches())
    for patch in tried[:: max(1, len(tried) // 20)]:
        seen = box_read(search.network, patch)
        boxes = [
            box
            for tile in job.tiles(patch)
            if (box := job.seen(tile, seen).intersection(Box(Vec3.of(0), VOLUME)))
        ]
        count = len(list(job.tiles(patch)))
        voxels = sum(box.size.volume for box in boxes) / count
        cut = sum(len(list(box.cut(CHUNK))) for box in boxes) / count
        found, other = (
            time_of(it, search.network, patch, {"cpu": Load(1.0, 0, 0)}).patch.reading
            for it in (plain, chunked)
        )
        assert found == pytest.approx(voxels * read.value)
        assert other - found == pytest.approx(cut * read.chunk)


@pytest.mark.parametrize("net", ["boundaries", "cells-unet"])
def test_regions_of_one_size_within_the_volume_have_the_same_search(net: str) -> None:
    network = load_network(NETWORKS / f"{net}.yaml")
    one, other = (
        znni.search(network, VOLUME, border="same", roi=np.s_[z : z + 16, 32:64, 16:48], **HERE)
        for z in (32, 48)
    )
    assert one.output == other.output
    assert one.overhead == other.overhead


@pytest.mark.parametrize("like", ["monai", "nnunet"])
@pytest.mark.parametrize("roi", [None, np.s_[:71, :, :40]])
@pytest.mark.parametrize("size", [Vec3.of(32), Vec3(32, 64, 96)])  # the last is longer than x
def test_blocks_count_the_windows_that_they_read(size: Vec3, roi: Any, like: WindowRules) -> None:
    network = load_network(NETWORKS / "cells-unet.yaml")
    network = with_window(network, Window(size, like=like))
    search = znni.search(network, VOLUME, roi=roi, **HERE)
    window = search.network.window
    assert window
    for patch in (Vec3.of(32), Vec3(90, 40, 24)):
        boxes = [
            window.around(tile.written).intersection(Box(Vec3.of(0), VOLUME))
            for tile in make_job(network, VOLUME, "valid", None, roi).tiles(patch)
        ]
        read = time_of(search.overhead, search.network, patch, {"cpu": Load(1.0, 0, 0)}).patch
        found = read.reading / stage_in(search.overhead, ReadModel).value
        assert found == pytest.approx(fmean(box.size.volume for box in boxes if box))
        assert found <= window.most_around(patch).volume
