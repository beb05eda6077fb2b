"""The files that container images are built from. No image is built here."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest
from paths import ROOT

DOCKERFILE = ROOT / "containers" / "Dockerfile"
APPTAINER = ROOT / "containers" / "znni.def"
SOURCES = {"pyproject.toml", "README.md", "LICENSE", "znni", "planner", "networks", "machines"}
LOCK = "requirements.lock"
FILES = {*SOURCES, LOCK}


def sections() -> dict[str, str]:
    """Return the sections of Apptainer's file, by name."""
    _, *parts = re.split(r"^%(\w+)\n", APPTAINER.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def instructions(name: str) -> list[str]:
    """Return what follows an instruction of the Dockerfile, each time."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.read_text(), re.MULTILINE)


def test_hadolint_finds_nothing() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip("hadolint is not installed")
    run = subprocess.run(["hadolint", str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_both_images_are_the_same() -> None:
    assert instructions("FROM") == re.findall(r"^From: (.*)$", APPTAINER.read_text(), re.MULTILINE)
    copied = {name for line in instructions("COPY") for name in line.split()[:-1]}
    also = {line.split()[0] for line in sections()["files"].split("\n") if line.strip()}
    assert copied == also == FILES
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = settings["targets"]["wheel"]
    assert {name.split("/")[0] for name in (*wheel["packages"], *wheel["force-include"])} < FILES
    assert instructions("ARG") == [sections()["arguments"].strip()]


def test_extras_are_known() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = DOCKERFILE.read_text() + APPTAINER.read_text()
    named = {extra for line in re.findall(r"EXTRAS=([\w,]+)", texts) for extra in line.split(",")}
    assert {"cluster", "gpu"} <= named <= set(settings["optional-dependencies"])


@pytest.mark.parametrize(
    "script", [*instructions("RUN"), sections()["post"], sections()["runscript"]]
)
def test_scripts_are_of_the_shell(script: str) -> None:
    subprocess.run(["sh", "-n", "-c", script], check=True)


def test_images_install_what_the_lock_file_names() -> None:
    assert all(f"-c /opt/znni/{LOCK} " in text.read_text() for text in (DOCKERFILE, APPTAINER))


def test_the_lock_file_has_every_library_of_an_image() -> None:
    locked = {
        re.split(r"[=\[ ]", line)[0] for line in (ROOT / LOCK).read_text().splitlines() if line
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = ("cluster", "zarr", "tiff", "nifti", "gpu", "gpu12", "test", "docs")
    wanted = [*project["dependencies"], *(each for name in names for each in extras[name])]
    libraries = {re.split(r"[\[<>=;!~ ]", each)[0].lower() for each in wanted} - {"znni"}
    assert not {name.replace("_", "-").replace(".", "-") for name in libraries} - {
        name.replace(".", "-") for name in locked
    }


def test_the_image_does_not_run_as_root() -> None:
    assert instructions("USER") == ["1000"]
