"""Processes of the same Python have its search path, and nothing from the user's folder."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from paths import ROOT

from znni.core.child_process import command_of, environment, signal_name

WHERE = """
import json, os, sys
print(json.__file__, os.environ["COLOUR"], sys.argv[1:], sep="\\n")
"""


def test_a_process_imports_nothing_from_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, folder = tmp_path / "modules", tmp_path / "folder"
    for each in (modules, folder):
        each.mkdir()
    (modules / "asked.py").write_text(WHERE)
    (folder / "json.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(modules)
    monkeypatch.chdir(folder)
    command = command_of("asked", "one", "two")
    done = subprocess.run(
        command, env=environment({"COLOUR": "blue"}), capture_output=True, text=True, check=True
    )
    where, colour, arguments = done.stdout.splitlines()
    assert Path(where).parent.name == "json"
    assert (colour, arguments) == ("blue", "['one', 'two']")


def test_all_processes_of_python_are_started_so() -> None:
    naming = [
        path.name for path in (ROOT / "znni").rglob("*.py") if "sys.executable" in path.read_text()
    ]
    assert naming == ["child_process.py"]


def test_signals_without_a_name_have_a_number() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(37) == "signal 37"
