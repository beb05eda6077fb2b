"""The command line of the benchmarks: memory as ``znni`` takes it, and mistakes told in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from paths import NETWORKS

import bench.__main__
import bench.patches
from znni.core.errors import InvalidInput

NET = str(NETWORKS / "n337.yaml")
NO_SIZE = "'x' is not a size of memory; write it as 8GiB or 500MB"
LAYERS = "; see python -m bench layers --help"


@pytest.fixture(autouse=True)
def binary(own_folder: Path) -> None:
    (own_folder / "binary.json").write_bytes(b"\xff\xfe")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command, none of which gets as far as measuring."""
    monkeypatch.setattr("sys.argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.__main__.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("layers", f"Missing option '--kernel'{LAYERS}"),
        ("layers --kernal 3", f"No such option: --kernal (Possible options: --kernel){LAYERS}"),
        ("layers --kernel two", f"Invalid value for '--kernel': 'two' is not an integer{LAYERS}"),
        ("layers --kernel 3 --kernel 0", f"Invalid value for '--kernel': 0 is less than 1{LAYERS}"),
        ("layers --budget x", f"Invalid value for '--budget': 'x' is not a number{LAYERS}"),
        (
            "layers --kernel 3 --out .",
            f"Invalid value for '--out': file '.' is a directory{LAYERS}",
        ),
        ("nonesuch", "No such command 'nonesuch'; see python -m bench --help"),
        ("network --net a/none.yaml", "a/none.yaml: no such network file; check the path"),
        (
            "network --net a --ram x",
            f"Invalid value for '--ram': {NO_SIZE}; see python -m bench network --help",
        ),
        (
            "network --net a --peer-ram x",
            f"Invalid value for '--peer-ram': {NO_SIZE}; see python -m bench network --help",
        ),
        (
            f"profile --net {NET} --plan none.json",
            "none.json: cannot be read: No such file or directory; check the path, or plan again "
            "with znni.plan (znni plan --out)",
        ),
        (
            f"profile --net {NET} --plan binary.json",
            "binary.json: not a plan of this version of znni: wrong or missing at the top; plan "
            "again with znni.plan (znni plan --out)",
        ),
    ],
)
def test_a_mistake_is_told_in_a_line(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command.split()) == InvalidInput.exit_code
    assert capsys.readouterr().err == f"bench: error: {said}\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("layers --kernel 3 --proposals 4", "--proposals does nothing with --device cpu"),
        ("network --net a --no-ours", "--no-ours does nothing with --device cpu"),
        ("network --net a --dtype uint8", "--dtype does nothing with --device cpu"),
        ("profile --net a --gpu-memory 1GiB", "--gpu-memory does nothing with --device cpu"),
        ("profile --net a --device gpu --alone", "--alone does nothing with --device gpu"),
    ],
)
def test_an_option_for_another_device_is_refused(
    command: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command.split()) == InvalidInput.exit_code
    assert capsys.readouterr().err == f"bench: error: {option}; leave it out\n"


def test_memory_has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def plan_for(*_: object, ram: int, **_options: object) -> None:
        asked.append(ram)
        raise InvalidInput("that is all")

    monkeypatch.setattr(bench.patches, "plan_for", plan_for)
    for given in ((), ("--ram", "2GiB"), ("--ram", "500MB"), ("--ram", "4096")):
        assert run(monkeypatch, "network", "--net", NET, *given) == InvalidInput.exit_code
    assert asked == [16 << 30, 2 << 30, 500_000_000, 4096]


def test_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 0
    assert "scaling" in capsys.readouterr().out
    assert run(monkeypatch, "paper", "--help") == 0
    assert "shares" in capsys.readouterr().out
    assert run(monkeypatch, "network", "--help") == 0
    said = capsys.readouterr().out
    assert "--ram SIZE" in said
    assert "16GiB" in said
    assert run(monkeypatch, "layers", "--help") == 0
    said = capsys.readouterr().out
    assert "--no-peers" in said
    assert "<bool>" not in said


@pytest.mark.parametrize(
    ("modules", "command"),
    [(bench.__main__.COMMANDS, ()), (bench.__main__.PAPER_COMMANDS, (bench.__main__.PAPER,))],
    ids=["all", "paper"],
)
def test_every_command_has_its_module(
    modules: dict[str, str], command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in modules:
        with pytest.raises(SystemExit, match=r"^0$"):
            bench.__main__.app([*command, name, "--help"])
        assert f" {name} [" in capsys.readouterr().out


@pytest.mark.slow
def test_a_command_imports_only_its_own_module() -> None:
    code = """
import sys, bench.__main__
sys.argv[1:] = ["phases", "--help"]
try:
    bench.__main__.main()
finally:
    print({"dask", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
