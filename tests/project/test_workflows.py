"""The workflows run on every Python of the package, with tests that exist and locked versions."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from paths import ROOT
from ruamel.yaml import YAML

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: YAML(typ="safe").load(path.read_text()) for path in FOLDER.iterdir()}


def commands(workflow: str) -> str:
    """Return all commands of a workflow."""
    jobs: dict[str, Any] = WORKFLOWS[workflow]["jobs"]
    steps = [step for job in jobs.values() for step in job.get("steps", [])]
    return "\n".join(step["run"] for step in steps if "run" in step)


@pytest.mark.parametrize("job", ["test", "wheel"])
def test_tests_and_wheel_run_on_every_python(job: str) -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [it.rpartition(" ")[2] for it in classifiers if re.search(r":: 3\.\d+$", it)]
    assert WORKFLOWS["tests"]["jobs"][job]["strategy"]["matrix"]["python"] == named


def test_the_tests_of_workflows_exist() -> None:
    named = re.findall(r"\btests/[\w/.]+", commands("tests"))
    assert "tests/quick.txt" in named
    named += (ROOT / "tests/quick.txt").read_text().split()
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS))
def test_versions_are_locked(workflow: str) -> None:
    lines = commands(workflow).splitlines()
    makes = [line for line in lines if re.search(r"\bmake (?!browser)", line)]
    assert [line for line in makes if "LOCK=requirements.lock" not in line] == []
    installs = [line for line in lines if "pip install" in line and "--no-deps" not in line]
    assert [line for line in installs if "requirements.lock" not in line] == []
