"""A few jobs of ``random_jobs.py``, of small volumes: the same ones every time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import random_jobs
from random_job_run import Kind, RandomJob
from random_jobs import LARGEST_ERROR, random_job, run_job, summary, whole_output

from znni.core.shapes import Box, Vec3
from znni.network.layers import Conv, Padding
from znni.network.network import Network
from znni.network.weights import Float32
from znni.primitives.reference import Float64


def small(kind: Kind, patch: int) -> RandomJob:
    """Return a job over a small volume, with one convolution that pads."""
    padding = Padding(Vec3(1, 0, 0), Vec3(1, 1, 0))
    layer = Conv("conv", 1, 2, Vec3(3, 2, 1), "relu", padding=padding)
    network = Network.chain("small", 1, (layer,))
    mask = Box(Vec3(3, 3, 3), Vec3(9, 9, 9))
    patches, size = Vec3(patch, patch, patch), Vec3(24, 25, 26)
    return RandomJob(network, size, "valid", "reflect", None, patches, 1.3, 1, kind, 0.5, mask)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "interrupted", "masked"])
def test_jobs_of_every_kind_are_right(kind: Kind) -> None:
    result = run_job(0, Random(0), small(kind, 8), with_torch=False)
    assert not result.wrong
    assert result.error <= LARGEST_ERROR
    assert result.ran
    assert result.ran["patches"] > 8
    assert result.ran["planned_by"] == "patch"
    assert result.ran["again"] == ("" if kind == "plain" else "same")
    assert (result.ran["skipped"] > 0) == (kind == "masked")


@pytest.mark.slow
def test_a_run_of_one_patch_can_be_interrupted() -> None:
    result = run_job(0, Random(0), small("interrupted", 26), with_torch=False)
    assert not result.wrong
    assert result.ran
    assert result.ran["patches"] == 1


@pytest.mark.slow
def test_wrong_outputs_and_failures_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    job = small("plain", 26)
    failed = run_job(0, Random(0), replace(job, threads=0), with_torch=False)
    assert "threads" in failed.wrong
    assert failed.ran is None

    def shifted(drawn: RandomJob, x: Float32, *, with_torch: bool) -> Float64:
        return whole_output(drawn, x, with_torch=with_torch) + 2e-3

    monkeypatch.setattr(random_jobs, "whole_output", shifted)
    wrong = run_job(0, Random(0), job, with_torch=False)
    assert wrong.wrong.startswith("error ")
    figures = summary([failed, wrong], [])
    assert len(figures["wrong"]) == 2
    assert figures["worst_case"]["error"] == wrong.error


def test_a_number_always_gives_the_same_job() -> None:
    drawn = [
        [random_job(Random(f"1 {n}"), 24, 300, 1, Counter()) for n in range(10)] for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    found = [job for job in drawn[0] if job]
    assert len({job.kind for job in found}) == 3
    assert len({len(job.network.nodes) for job in found}) > 2
    assert all(24 <= side <= 300 for job in found for side in job.size)


def test_the_whole_outputs_of_both_evaluations_agree() -> None:
    pytest.importorskip("torch", reason="one of them is PyTorch's")
    for number in range(6):
        job = random_job(Random(f"2 {number}"), 6, 12, 1, Counter())
        assert job
        shape = (job.network.in_features, *job.size)
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        ours, theirs = (whole_output(job, x, with_torch=with_torch) for with_torch in (False, True))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10 * np.abs(ours).max() + 1e-300)


@pytest.mark.slow
def test_the_program_writes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "record.json"
    options = ["--only", "1", "--from", "12", "--to", "16", "--threads", "1", "--out", str(record)]
    monkeypatch.setattr("sys.argv", ["random_jobs.py", *options])
    with pytest.raises(SystemExit) as ended:
        random_jobs.main()
    assert ended.value.code == 0
    written = json.loads(record.read_text())
    assert written["jobs"] == 1
    assert written["worst_error"] <= LARGEST_ERROR
    assert written["wrong"] == []
