"""Extras keep the PyTorch that is there: the resolver says what it would install beside it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "index.md").read_text()
# What PyTorch's own index has for machines without a GPU.
TORCH = "2.13.0+cpu"
SECONDS = 90  # for the index
KEEPING = "torch", "onnx", "zarr", "tiff", "nifti", "cluster", "plot"

pytestmark = pytest.mark.slow


def requirements(extra: str) -> set[str]:
    """Return what an extra requires beside znni's own requirements."""
    found = set[str]()
    for each in PROJECT["optional-dependencies"][extra]:
        others = re.fullmatch(r"znni\[(.*)\]", each)
        found |= set().union(*map(requirements, others[1].split(","))) if others else {each}
    return found


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment that has a build of PyTorch for CPUs, by its metadata."""
    venv.create(tmp_path / "environment", with_pip=False)
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    known = packages / f"torch-{TORCH}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n")
    (known / "RECORD").touch()
    return tmp_path / "environment" / "bin" / "python"


def installed_by(python: Path, *arguments: str) -> set[str]:
    """Return the packages that would be installed; nothing is. uv downloads no wheels for that."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python")
    command = [uv, "pip", "install", "--python", python, "--dry-run", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index did not answer within {SECONDS} s")
    if re.search("error sending request|failed to fetch|dns error", done.stderr, re.I):
        pytest.skip(f"no package index is reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^ \+ ([\w.-]+)==", done.stderr, re.M))


def test_extras_keep_the_pytorch_that_is_there(python: Path) -> None:
    wanted = set().union(PROJECT["dependencies"], *map(requirements, KEEPING))
    found = installed_by(python, *sorted(wanted))
    assert "numba" in found
    assert not {name for name in found if name == "torch" or name.startswith("nvidia-")}


def test_the_networks_of_nnunet_come_as_the_page_says(python: Path) -> None:
    (line,) = re.findall(r"^pip install (--no-deps dynamic-network-architectures)$", PAGE, re.M)
    wanted = requirements("nnunet") - requirements("torch")
    assert {re.split("[>=<]", each)[0] for each in wanted} == {line.split()[-1]}
    assert installed_by(python, *line.split()) == {"dynamic-network-architectures"}
