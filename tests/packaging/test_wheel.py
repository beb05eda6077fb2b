"""The wheel runs the demo in an empty environment, and holds the two packages: ``make wheel``."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from scores import score

from znni.cli.example import SEED
from znni.volumes.synthetic_cells import synthetic_cells

ROOT = Path(__file__).parents[2]
PACKAGES = ("planner", "znni")
DEMO = ("cells.h5", "cells-unet.yaml", "cells-unet.safetensors")
DEMO_OUTPUT = ROOT / "demo-output" / "membranes.h5"
SIZE = (176, 192, 192)  # of the volume of README's lines
MOST_BYTES = 25 * 2**20  # of the wheel

pytestmark = pytest.mark.skipif(
    "ZNNI_TEST_WHEEL" not in os.environ, reason="builds and installs a wheel: make wheel runs it"
)


def run(*command: object, folder: Path) -> str:
    """Run a command without anything of this environment's Python, and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=kept,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def install(wheel: Path, environment: Path) -> None:
    """Install a wheel as the Makefile installs packages: by uv, or by pip if uv fails."""
    here = Path(sys.executable).parent
    try:
        run(here / "uv", "pip", "install", "--python", environment, wheel, folder=ROOT)
    except (AssertionError, FileNotFoundError):
        run(here / "pip", "--python", environment, "install", "--no-compile", wheel, folder=ROOT)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and a wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


def in_packages(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.split("/")[0] in PACKAGES}


def files_of_tree() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def shipped(folder: str) -> set[str]:
    """Return the files of networks and machines that are found by name, in a folder."""
    kinds = (".yaml", ".safetensors")
    networks = (path for path in (ROOT / "networks").iterdir() if path.suffix in kinds)
    machines = (path for path in (ROOT / "machines").rglob("*") if path.is_file())
    found = (path.relative_to(ROOT).as_posix() for path in (*networks, *machines))
    return {f"{folder}{path}" for path in found}


def main_of(path: Path) -> NDArray[np.float32]:
    with h5py.File(path) as file:
        return np.asarray(file["main"], np.float32)


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment that has nothing but the wheel."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment)
    install(wheel, environment)
    return environment / "bin"


def test_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert in_packages(names) == files_of_tree() | shipped("znni/shipped/")
    assert {"znni/py.typed", "planner/py.typed"} <= set(names)
    assert {Path(name).suffix for name in names} >= {".cu", ".cuh", ".html"}
    others = {name.split("/")[0] for name in names} - set(PACKAGES)
    assert [name.endswith(".dist-info") for name in others] == [True]


def test_sdist_holds_what_the_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    assert in_packages(names) == files_of_tree()
    assert names - in_packages(names) - shipped("") == {
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }


def test_runs_the_demo_in_an_empty_environment(commands: Path, tmp_path: Path) -> None:
    assert DEMO_OUTPUT.exists(), "run make demo first: its output is what this compares with"
    folder = tmp_path
    for name in DEMO:
        shutil.copy(ROOT / "networks" / name, folder)

    where = run(commands / "python", "-c", "import znni; print(znni.__file__)", folder=folder)
    assert Path(where.strip()).is_relative_to(commands.parent)
    run(
        *(commands / "znni", "infer", "cells.h5", "--net", "cells-unet.yaml"),
        *("--out", "membranes.h5"),
        folder=folder,
    )

    assert "cells-unet: 1 map in" in run(commands / "znni", "networks", folder=folder)
    assert "RTX 4090" in run(commands / "znni", "info", "--machine", "rtx4090", folder=folder)
    assert "expects grey" in run(commands / "znni", "info", "boundaries", folder=folder)
    got, expected = main_of(folder / "membranes.h5"), main_of(DEMO_OUTPUT)
    assert expected.std() > 0.1  # not blank
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_the_lines_of_the_readme_run_in_an_empty_folder(commands: Path, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"```bash\n(znni example .*?)```", text, re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert lines[1] == ["znni", "infer", "volume.h5", "--net", "n537.yaml"]
    lines[0] += ["--size", ",".join(map(str, SIZE))]  # that of the demo takes a minute more
    for program, *arguments in lines:
        run(commands / program, *arguments, folder=tmp_path)
    truth = synthetic_cells(SEED, SIZE)
    membrane, cytoplasm, organelle = main_of(tmp_path / "volume-n537.h5")
    inner = (slice(81, -81),) * 3
    assert score(membrane, truth.boundary[inner]).roc_auc > 0.9
    assert score(organelle, truth.organelle[inner]).roc_auc > 0.9
    assert cytoplasm.std() > 0.1
    assert (tmp_path / "volume-n537.h5.html").stat().st_size > 50_000  # most of it pictures
