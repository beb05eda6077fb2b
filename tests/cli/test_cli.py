"""The command line itself: help, information, usage errors, and traceback."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from command_line import INFER, refused, succeeds, znni

from znni import __version__

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def test_info() -> None:
    network = succeeds("info", "tiny.yaml")
    for part in ("conv 2x3x3, 1 -> 3 maps, relu", "max-pool 1x2x2", "value * 0.01 + -1", "6x8"):
        assert part in network
    assert "/raw  (7, 20, 23) uint8, chunks (4, 8, 8)" in succeeds("info", "volume.h5")
    assert "/raw" in succeeds("info", "volume.h5:/raw")


def test_version_and_help() -> None:
    assert succeeds("--version") == f"znni {__version__}\n"
    for command in ((), ("infer",), ("plan",), ("calibrate",), ("import",), ("info",)):
        said = succeeds(*command, "--help")
        assert said.startswith(f"Usage: {' '.join(('znni', *command))} [OPTIONS]")
        assert "--help " in said
        assert "<bool>" not in said  # flags take no value


def test_it_runs_as_a_module() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "znni", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"znni {__version__}\n"


def test_debug_shows_a_traceback_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    outcome = znni("infer", "none.h5", "--net", "tiny.yaml", "--debug")
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.endswith("znni: error: none.h5: no such file; check the path\n")
    with caplog.at_level(logging.INFO, logger="znni"):
        assert znni("--debug", *INFER).code == 0
    assert "planned in" in caplog.text


def test_one_letter_wrong() -> None:
    said = refused(*INFER, "--dtpye", "uint8")
    assert "No such option: --dtpye" in said
    assert "--dtype" in said
    assert said.endswith("; see znni infer --help")
