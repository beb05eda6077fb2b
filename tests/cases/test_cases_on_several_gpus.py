"""Whole cases whose networks several GPUs compute: the labels are those of one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_reference import network, run
from case_scans import nibabel, scan, weights_file, write
from emulated_fleet import GPUS, use_emulated_gpus
from emulated_gpu import needs_emulation
from fleet_cases import two_workers

from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.cases.folder import predict_cases
from znni.cases.networks import NetworkSet, joined
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.engine.workers.worker import Worker
from znni.inference import planning, session
from znni.inference.session import Session
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import random_weights

PATCH = Vec3(8, 12, 10)
OPTIONS = Options(limits=Choices(device="cpu", threads=1, costs="built-in"))


@pytest.fixture
def by_worker(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of blocks that each worker computes. A plan has several."""
    seen = Counter[str]()
    compute = Worker.compute

    def noted(worker: Worker, *arguments: Any) -> Any:
        seen[worker.name] += 1
        return compute(worker, *arguments)

    def in_small_blocks(found: Any, *_: Any, **__: Any) -> Any:
        return [found.fastest_for(PATCH)]

    monkeypatch.setattr(Worker, "compute", noted)
    monkeypatch.setattr(planning, "fastest", in_small_blocks)
    return seen


@pytest.mark.slow
def test_a_folder_of_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_worker: Counter[str]
) -> None:
    """Processes of the host stand for GPUs. They stay from case to case."""
    weights_file(tmp_path / "w.npz", network())
    file = tmp_path / "organs.yaml"
    net = named_weights(file)
    scans = [write(tmp_path / f"{seed}.nii", scan(seed=seed)) for seed in range(3)]
    alone = [run(net, (path,), tmp_path / f"alone-{path.name}") for path in scans]
    assert not by_worker
    monkeypatch.setattr(session, "prepare", two_workers)
    cases = [Case((path,), tmp_path / f"shared-{path.name}") for path in scans]
    report = predict_cases(cases, net, OPTIONS)
    assert report.failures == []
    for case, labels in zip(cases, alone, strict=True):
        np.testing.assert_array_equal(np.asarray(nibabel.load(case.out).dataobj).T, labels)
    assert len(by_worker) == 2


def named_weights(file: Path) -> Network:
    """Return the network of cases, whose file names its weights."""
    from case_scans import NET

    file.write_text(NET.replace("name: organs", "name: organs\nweights: w.npz"))
    return load_network(file)


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("count", [1, 2])
def test_emulated_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_worker: Counter[str], count: int
) -> None:
    """No process of a GPU starts while the scan is prepared, which takes the same memory.

    A set's networks have weights and voxels of their own.
    """
    use_emulated_gpus(monkeypatch)
    started: list[Any] = []
    monkeypatch.setattr(session, "several_waiting", started.append)
    networks, found = networks_of(count), []
    weights = [random_weights(net, 7 + number) for number, net in enumerate(networks.networks)]
    file = write(tmp_path / "scan.nii", scan((13, 18, 15)))
    for gpus in (1, GPUS):
        by_worker.clear()
        options = Options(limits=Choices(device="gpu", gpus=gpus, costs="built-in"))
        case = Case((file,), tmp_path / f"by-{gpus}.nii")
        report = predict(case, networks, weights, Session(), options)
        found.append(np.asarray(nibabel.load(case.out).dataobj))
        assert len(report.reports) == count
        assert len(by_worker) == gpus
    assert started == []
    np.testing.assert_array_equal(found[1], found[0])
    assert len(np.unique(found[0])) == 1 + 2 * count


def networks_of(count: int) -> NetworkSet:
    """Return a set of one or two networks, whose labels have names of their own."""
    other = network(name="bones", labels="{background: 0, rib: 1, spine: 2}", spacing="2.5,1.5,2")
    return joined("set", [network(), other][:count])
