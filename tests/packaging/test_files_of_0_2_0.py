"""Files and commands of version 0.2.0, which later versions must read, or refuse with a remedy.

The files in ``tests/files_of_0_2_0`` were made by that version: a network, a plan, a finished
output, two unfinished outputs, measured costs, and a list of its interface.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import typer
import zarr
from command_line import refused, rewrite, succeeds, znni
from paths import ROOT

import znni as package
from znni.calibration.cost_file import VARIABLE
from znni.cli import app
from znni.core import errors, memory_errors
from znni.inference.request import RunArguments
from znni.network.network_file import load_network
from znni.plans.plan_file import load_plan

FILES = ROOT / "tests" / "files_of_0_2_0"
INTERFACE: dict[str, Any] = json.loads((FILES / "interface.json").read_text())
CPU = "--device", "cpu", "--threads", "1", "--costs", "built-in"
INFER = "infer", "volume.h5", "--net", "tiny.yaml", *CPU, "--ram", "600MiB"
CHANGED = datetime.fromisoformat("2026-11-29T21:17:43+00:00")  # what the ledgers say of the volume
NANOSECONDS = 983_103_993


@pytest.fixture
def old_files(own_folder: Path) -> Path:
    """Copies of the files, in the test's own folder. The volume is as old as the ledgers say."""
    shutil.copytree(FILES, own_folder, dirs_exist_ok=True)
    changed = int(CHANGED.timestamp()) * 10**9 + NANOSECONDS
    os.utime("volume.h5", ns=(changed, changed))
    return own_folder


def done(*arguments: str) -> str:
    """Return what a command prints that must succeed. A slow one shows its progress, too."""
    outcome = znni(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def values(name: str) -> np.ndarray[Any, Any]:
    if name.endswith(".zarr"):
        found = zarr.open_group(name, mode="r")["0"]
        return np.asarray(found[:])  # type: ignore[index]
    with h5py.File(name) as file:
        return np.asarray(file["main"][:])


@pytest.mark.usefixtures("old_files")
def test_a_network_and_its_weights_are_read_and_compute_the_same() -> None:
    done(*INFER, "--out", "new.h5")
    np.testing.assert_allclose(values("new.h5"), values("whole.h5"), rtol=0, atol=1e-5)
    assert load_network("tiny.yaml").name == "tiny"


@pytest.mark.usefixtures("old_files")
def test_a_plan_is_read_and_run() -> None:
    plan = load_plan("plan.json")
    done("infer", "volume.h5", "--net", "tiny.yaml", "--out", "new.h5", "--plan", "plan.json")
    np.testing.assert_allclose(values("new.h5"), values("whole.h5"), rtol=0, atol=1e-5)
    assert (plan.network.name, plan.patches) == ("tiny", 1)


@pytest.mark.usefixtures("old_files")
def test_a_plan_of_a_primitive_that_is_gone_is_refused_with_a_remedy() -> None:
    rewrite("plan.json", '"primitive": "direct"', '"primitive": "of_long_ago"')
    said = refused("infer", "volume.h5", "--net", "tiny.yaml", "--plan", "plan.json")
    assert "of_long_ago" in said
    assert "znni plan" in said


@pytest.mark.usefixtures("old_files")
def test_a_finished_output_is_verified_and_described() -> None:
    assert "agree" in succeeds("verify", "whole.h5")
    assert "command: znni infer volume.h5" in succeeds("info", "whole.h5")


@pytest.mark.usefixtures("old_files")
@pytest.mark.parametrize("name", ["half.h5", "half.zarr"])
def test_an_unfinished_output_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    said = done(*INFER, "--out", name)
    assert "going on where an earlier run stopped, with 35% of the output finished" in caplog.text
    assert "1,920 voxels were finished before" in said
    np.testing.assert_allclose(values(name), values("whole.h5"), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("old_files")
def test_an_unfinished_output_of_another_volume_is_refused_with_a_remedy() -> None:
    os.utime("volume.h5")
    with h5py.File("volume.h5", "r+") as file:
        file["raw"][0, 0, 0] = 255
    said = refused(*INFER, "--out", "half.h5")
    assert "half.h5.partial" in said
    assert "--no-resume" in said


@pytest.mark.usefixtures("old_files")
def test_measured_costs_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(Path("costs.sqlite").resolve()))
    asked = "--device", "cpu", "--threads", "1"
    outcome = znni("plan", "--net", "tiny.yaml", "--volume", "24,20,23", *asked, "--fresh")
    assert (outcome.code, outcome.err) == (0, "")


def arguments_of(function: Any) -> set[str]:
    """Return the names of all arguments, with the keywords that runs share."""
    parameters = inspect.signature(function).parameters
    shared = any(it.annotation == "Unpack[RunArguments]" for it in parameters.values())
    return {*parameters, *(RunArguments.__annotations__ if shared else ())}


@pytest.mark.parametrize("name", INTERFACE["python"])
def test_python_has_the_same_names_and_arguments(name: str) -> None:
    wanted = INTERFACE["python"][name]
    found = arguments_of(getattr(package, name)) if wanted else set()
    assert set(wanted) <= found
    assert name in package.__all__


def test_commands_have_the_same_options() -> None:
    program: Any = typer.main.get_command(app)
    for name, wanted in INTERFACE["commands"].items():
        command = program.commands[name]
        found = {each for param in command.params for each in (*param.opts, *param.secondary_opts)}
        assert {*wanted} <= found, name


def test_errors_have_the_same_exit_codes() -> None:
    kinds = vars(errors) | vars(memory_errors)
    for name, code in INTERFACE["exit_codes"].items():
        assert kinds[name].exit_code == code
