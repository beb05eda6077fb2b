"""Runs under a real SLURM, started here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import psutil
import pytest
from paths import ROOT, SUPPORT
from slurm import Slurm, missing

from bench.same_output import difference
from znni.volumes.locate import read_ledger

# Importing dask-jobqueue would change how all tests of this process take an interruption.
ABSENT = "" if find_spec("dask_jobqueue") else "dask-jobqueue is not installed"
ABSENT = ABSENT or missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ABSENT), reason=ABSENT or "SLURM is there"),
]

CHILD = "znni.cluster.child"
SECONDS = 180  # until a run counts as hanging
INFER = "znni infer volume.h5 --net networks/boundaries.yaml"
LIMITS = "--device cpu --costs built-in --ram 600MiB --threads 1"
SLOW = {"ALTERED": "slow disk", "PYTHONPATH": f"{SUPPORT / 'altered'}:{ROOT}"}
CLUSTER = """\
kind: slurm
groups:
  - {name: one, count: 1, cores: 1, ram: 900MiB, directives: ["--gres=gpu:1"]}
  - {name: other, count: 1, cores: 1, ram: 900MiB, directives: ["--gres=gpu:1"]}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def case(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents name, a plan, and an output that one process has made."""
    folder = tmp_path_factory.mktemp("case")
    for name in ("one", "killed", "array"):
        (folder / name).mkdir()
    (folder / "networks").symlink_to(ROOT / "networks")
    with h5py.File(ROOT / "networks/cells.h5") as cells, h5py.File(folder / "volume.h5", "w") as to:
        to["raw"] = np.tile(cells["raw"][:48, :64, :64], (2, 2, 2))
    plan = f"znni plan --net networks/boundaries.yaml {LIMITS} --volume 50,58,58 --out plan.json"
    finish(begin(slurm, folder, plan))
    finish(begin(slurm, folder, f"{INFER} --plan plan.json {LIMITS} --out one/out.zarr --part 0/1"))
    finish(begin(slurm, folder, "znni finish one/out.zarr"))
    return folder


def begin(slurm: Slurm, folder: Path, line: str, **variables: str) -> subprocess.Popen[str]:
    """Begin a command of the shell in a folder, from which SLURM and znni are found."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["bash", "-ec", line], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | slurm.environment | {"PATH": path, "PYTHONPATH": str(ROOT)} | variables,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a command, and return what it has printed."""
    told, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, told
    return told


def assert_same(folder: Path, out: str) -> None:
    assert difference(folder / "one/out.zarr", folder / out, frozenset({"command"})) == ""
    mine, other = (read_ledger(str(folder / name)).checksums for name in ("one/out.zarr", out))
    assert mine == other


def children(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if CHILD in process.cmdline() and process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:  # it has ended
            continue
    return found


def gpus_of(processes: list[psutil.Process]) -> set[str | None]:
    return {process.environ().get("CUDA_VISIBLE_DEVICES") for process in processes}


def test_a_job_that_is_killed_is_submitted_again(slurm: Slurm, case: Path) -> None:
    (case / "slurm.yaml").write_text(CLUSTER)
    run = begin(
        slurm, case, f"{INFER} --plan plan.json --cluster slurm.yaml --out killed/out.zarr --costs "
        f"built-in --device cpu", **SLOW
    )  # fmt: skip
    end = time.monotonic() + SECONDS
    while len(working := children(case)) < 2:
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    assert gpus_of(working) == {"0", "1"}
    first, *_ = jobs = slurm.jobs()
    slurm.run("scancel", "--signal=KILL", "--full", first)
    while len(slurm.jobs()) < len(jobs) or first in slurm.jobs():
        assert time.monotonic() < end
        time.sleep(0.1)
    told = finish(run)
    assert "1 lost" in told
    assert slurm.jobs() == []
    assert sorted(path.name for path in (case / "killed").iterdir()) == ["out.zarr"]
    assert_same(case, "killed/out.zarr")


def test_the_page_on_clusters_is_right_word_for_word(slurm: Slurm, case: Path) -> None:
    page = (ROOT / "docs/how-to/run-on-a-cluster.md").read_text()
    section = page.partition("\n## SLURM\n")[2].partition("\n## ")[0]
    name, text = re.findall(r"Save this as `(\S+)`:\n\n```yaml\n(.*?)```", section, re.DOTALL)[0]
    (case / name).write_text(text)
    (install, infer) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert install.startswith("pip install")
    told = finish(begin(slurm, case, infer))
    assert re.search(r"blocks? complete", told)
    assert slurm.jobs() == []


def test_the_array_of_the_page_on_machines_is_right_word_for_word(slurm: Slurm, case: Path) -> None:
    page = (ROOT / "docs/how-to/several-machines.md").read_text()
    section = page.partition("\n## SLURM\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    (case / "parts.sh").write_text(script)
    (submit, complete) = re.findall(r"`((?:sbatch|znni finish) \S+)`", section)
    finish(begin(slurm, case, submit.replace("sbatch", "sbatch --wait")))
    assert "complete" in finish(begin(slurm, case, complete))


def test_tasks_of_an_array_are_killed_and_see_gpus_of_their_own(slurm: Slurm, case: Path) -> None:
    (case / "array.sh").write_text(
        f"#!/bin/bash\nenv > $SLURM_ARRAY_TASK_ID.env\n{INFER} --plan plan.json {LIMITS} "
        f"--out array/out.zarr --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT\n"
    )
    line = "sbatch --wait --array=0-1 --gres=gpu:1 --output=%a.log array.sh"
    array = begin(slurm, case, line, **SLOW)
    end = time.monotonic() + SECONDS
    while not list((case / "array").glob("*.ledger/*.log")) or len(slurm.jobs()) < 2:
        assert array.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    slurm.run("scancel", "--signal=KILL", "--full", slurm.jobs()[0])
    finish(array, 1)
    assert "are not computed yet" in finish(begin(slurm, case, "znni finish array/out.zarr"), 4)
    finish(begin(slurm, case, line))
    seen = [(case / f"{task}.env").read_text().splitlines() for task in (0, 1)]
    gpus = {line for lines in seen for line in lines if line.startswith("CUDA_VISIBLE_DEVICES=")}
    assert gpus == {"CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"}
    finish(begin(slurm, case, "znni finish array/out.zarr"))
    assert_same(case, "array/out.zarr")


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ("partition: nowhere", 4, "SLURM does not take a job: .*nowhere|invalid partition"),
        ("walltime: 00:01:00", 2, "its machine is taken away in .*; give more walltime"),
        ('directives: ["--output=/nowhere/it"]', 4, r"\d jobs ended before a worker joined"),
    ],
)
def test_what_slurm_cannot_do_is_said_in_a_line(
    slurm: Slurm, case: Path, change: str, code: int, said: str
) -> None:
    group = "{name: one, count: 1, cores: 1, ram: 900MiB, " + change + "}"
    (case / "wrong.yaml").write_text(f"kind: slurm\ngroups: [{group}]\n")
    told = finish(
        begin(
            slurm, case, f"{INFER} --plan plan.json --cluster wrong.yaml --out wrong.zarr --costs "
            f"built-in --device cpu"
        ),
        code,
    )  # fmt: skip
    line = told.strip().rpartition("\n")[2]
    assert line.startswith("znni: error: ")
    assert re.search(said, line)
    assert slurm.jobs() == []


def test_an_interruption_stays_one() -> None:
    code = (
        "import signal; handler = signal.getsignal(signal.SIGINT); import znni.cluster.slurm; "
        "assert signal.getsignal(signal.SIGINT) is handler"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
