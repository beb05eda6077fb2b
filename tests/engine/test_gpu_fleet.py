"""Two workers on one GPU, in the place of one on each of two."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import attributes, read_main, refused, succeeds, write_volume
from numpy.typing import NDArray
from paths import NETWORKS

from znni.core.plan_options import Choices
from znni.inference import build_runner
from znni.machine.machine import Machine

pytestmark = pytest.mark.gpu

NET = NETWORKS / "boundaries.yaml"
RUN = ("infer", "volume.h5", "--net", NET, "--device", "gpu", "--dtype", "uint8", "--out")
LIMITS = ("--gpu-memory", "1GiB", "--ram", "24GiB", "--costs", "built-in")


def run_twice_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs have two workers, which see the same GPU."""

    def twice(machine: Machine, _choices: Choices) -> Machine:
        return replace(machine, gpus=machine.gpus[:1] * 2, used_gpus=2)

    for module in ("planning", "plan_checks", "plan_choice"):
        monkeypatch.setattr(f"znni.inference.{module}.choose_gpus", twice)


@pytest.fixture
def whole(own_folder: Path) -> NDArray[Any]:  # noqa: ARG001 - volume.h5 is in it
    """The output of a run in this process alone, by a plan that is noted."""
    write_volume(np.random.default_rng(0).integers(0, 255, (300, 200, 250), np.uint8))
    plan = ("plan", "--net", NET, "--volume", "volume.h5", "--device", "gpu", "--out", "plan.json")
    succeeds(*plan, "--gpu-memory", "256MiB", "--costs", "built-in")
    succeeds(*RUN, "one.h5", "--plan", "plan.json", *LIMITS)
    return read_main("one.h5")


def run_by_two(monkeypatch: pytest.MonkeyPatch, whole: NDArray[Any], *options: Any) -> None:
    """Check that two workers give the output of a run in this process, within their memory."""
    run_twice_there(monkeypatch)
    print(succeeds(*options, "--out", "two.h5", "--plan", "plan.json", *LIMITS))
    np.testing.assert_array_equal(read_main("two.h5"), whole)
    told = attributes("two.h5")
    promised = told["predicted_gpu_memory_bytes"]
    assert promised / 2 < told["gpu_peak_memory_bytes"] <= promised
    assert told["peak_memory_bytes"] <= told["predicted_memory_bytes"]


def test_two_workers_give_the_same_bytes(
    whole: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_by_two(monkeypatch, whole, *RUN[:-1])


@pytest.mark.parametrize(
    "options",
    [(), ("--window", "64,64,64"), ("--window", "64,64,64", "--threshold", "0.5")],
    ids=["exact", "windows", "labels"],
)
@pytest.mark.usefixtures("own_folder")
def test_two_workers_give_the_same_bytes_of_a_unet(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_volume(np.random.default_rng(0).integers(0, 255, (150, 200, 170), np.uint8))
    net, on_gpu = ("--net", NETWORKS / "cells-unet.yaml"), ("--device", "gpu")
    plan = ("plan", "--volume", "volume.h5", *net, *on_gpu, *options, "--costs", "built-in")
    succeeds(*plan, "--gpu-memory", "512MiB", "--out", "plan.json")
    run = ("infer", "volume.h5", *net, *on_gpu, *options)
    succeeds(*run, "--out", "one.h5", "--plan", "plan.json", *LIMITS)
    run_by_two(monkeypatch, read_main("one.h5"), *run)


def test_a_worker_that_is_killed_ends_the_run(
    whole: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_twice_there(monkeypatch)
    prepare = build_runner.prepare

    def doomed(*arguments: Any) -> Any:
        fleet = prepare(*arguments)
        psutil.Process().children()[-1].kill()
        return fleet

    monkeypatch.setattr("znni.inference.session.prepare", doomed)
    said = refused(*RUN, "out.h5", "--plan", "plan.json", *LIMITS, code=4)
    assert re.match("the worker of GPU 0 was killed by SIGKILL", said)
    if Path("out.h5.partial").exists():
        found = read_main("out.h5.partial")
        np.testing.assert_array_equal(found[found != 0], whole[found != 0])
