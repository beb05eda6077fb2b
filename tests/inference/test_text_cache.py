"""Texts of plans that are printed again: only if nothing differs, and with few modules loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import SMALL_NET
from fakes import gpu
from fakes import machine as fake_machine
from installed_packages import PLANE_PRODUCTS, install

from znni.calibration import phase_notes
from znni.calibration.cost_file import VARIABLE as COSTS
from znni.calibration.phase_notes import NOTES, FixedSeconds, Kind, note
from znni.core.errors import InvalidInput
from znni.inference import text_cache
from znni.inference.text_cache import MOST_BYTES, CachedText, cached_text, store_text, text_file
from znni.plans.job_seconds import SecondsAround
from znni.plans.plan_text import PlanText

# A command in a process of its own, which tells afterwards what it loaded and opened.
PROGRAM = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(given) if event == "open" else None)
from znni.core.loading import own_process
own_process()
from znni.machine import busy
busy.LOADS = busy.Path("/proc/none")
from znni.cli import main
main()
print("loaded:", *sys.modules)
for path, mode, _ in opened:
    if isinstance(path, (str, bytes)) and mode in ("r", "rb", None):
        print("opened:", path)
"""

# Modules that only a search or a kept plan needs.
NOT_NEEDED = {"numpy", "planner.search", "ruamel.yaml", "znni.inference.planning"}


@pytest.fixture
def folder(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, with a network, kept plans and all other notes."""
    Path("small.yaml").write_text(SMALL_NET)
    Path("site").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(own_folder / "site")])
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, str(own_folder / "plans"))
    monkeypatch.setenv(COSTS, str(own_folder / "costs.sqlite"))
    monkeypatch.setattr(phase_notes, "NOTES", NOTES)
    return own_folder


class Printed:
    """What ``znni plan`` prints in a process of its own, with the modules and files of this one."""

    def __init__(self, *arguments: str) -> None:
        command = ("plan", "--net", "small.yaml", "--volume", "90,90,90", "--ram", "1GiB")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *command, "--device", "cpu", *arguments],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.text, _, told = done.stdout.partition("loaded: ")
        loaded, *opened = told.split("\nopened: ")
        self.loaded, self.opened = set(loaded.split()), {Path(path.strip()) for path in opened}

    @property
    def again(self) -> bool:
        """Whether it is a text that was kept."""
        return not self.loaded & NOT_NEEDED


@pytest.mark.slow
def test_the_same_command_prints_the_same_with_few_modules(folder: Path) -> None:
    first, second = Printed(), Printed()
    assert not first.again
    assert "conv1" in first.text
    assert second.again
    assert second.text == first.text
    as_json = Printed("--json")
    assert not as_json.again
    assert Printed("--json").text == as_json.text
    fresh = Printed("--fresh")
    assert not fresh.again
    assert fresh.text == first.text
    with Path("small.yaml").open("a") as file:
        file.write("about: another text\n")
    assert not Printed().again
    assert len(list((folder / "plans").glob("*.txt"))) == 3


@pytest.mark.slow
def test_a_command_with_more_to_tell_or_to_do_plans(folder: Path) -> None:
    Printed()
    for more in (("--explain",), ("--alternatives", "2"), ("--out", "plan.json")):
        assert not Printed(*more).again
    assert (folder / "plan.json").exists()


@pytest.mark.slow
def test_a_text_is_known_by_all_files_that_a_plan_reads(folder: Path) -> None:
    """What ``text_file`` does not look at must not be read to make a plan."""
    Printed()
    Path("small.yaml").write_text(SMALL_NET.replace("small", "other"))  # nothing is known of it
    code = [Path(place).resolve() for place in (*sys.path, sys.prefix, sys.base_prefix) if place]
    read = {path for path in Printed().opened if path.suffix not in (".py", ".pyc")}
    others = {path for path in read if not any(map(path.resolve().is_relative_to, code))}
    assert Path("small.yaml") in others
    known = [Path("small.yaml"), folder / "cache", folder / "plans", folder / "costs.sqlite"]
    system = [Path("/proc"), Path("/sys"), Path("/etc/localtime"), Path("/dev/null")]
    assert not {it for it in others if not any(map(it.is_relative_to, known + system))}


HERE = fake_machine()
AROUND = SecondsAround(start=1.5, planning=0.5, exit=0.25)


def _named(**changed: Any) -> Path:
    asked = {"network": Path("small.yaml"), "machine": HERE, "asked": ("a region",)} | changed
    file = text_file(**asked)
    assert file is not None
    return file


ASKED: dict[str, dict[str, Any]] = {
    "network": {"network": Path("other.yaml")},
    "place of the network": {"network": Path("same.yaml")},
    "options": {"asked": ("another region",)},
    "memory": {"machine": replace(HERE, host=replace(HERE.host, memory=1))},
    "GPUs": {"machine": replace(HERE, gpus=(gpu(),))},
    "absent": {"machine": replace(HERE, absent=True)},
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("what", ASKED)
def test_another_text_is_printed_if_anything_else_is_asked(what: str) -> None:
    Path("other.yaml").write_text(SMALL_NET.replace("small", "other"))
    Path("same.yaml").write_text(SMALL_NET)
    assert _named() == _named()
    assert _named(**ASKED[what]) != _named()


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "instructions": lambda patch: patch.setattr(text_cache, "processor_features", dict),
    "warm memory": lambda patch: patch.setattr(text_cache, "warm_bytes", lambda: 3.0),
    "release": lambda patch: patch.setattr(text_cache.version, "__version__", "another"),
    "code": lambda patch: patch.setattr(text_cache, "state_of_source", lambda _: "another"),
    "packages": lambda _: Path("site/other-1.2.dist-info").mkdir(),
    "variable": lambda patch: patch.setenv("ZNNI_GPU_CAPABILITY", "8.0"),
    "costs": lambda _: Path("costs.sqlite").write_bytes(b"more"),
    "CUDA": lambda _: note("gpus", FixedSeconds(cuda=3.0)),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("what", CHANGES)
def test_a_text_is_not_printed_again_if_anything_differs(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = replace(HERE, gpus=(gpu(),))
    before = _named(machine=machine)
    CHANGES[what](monkeypatch)
    assert _named(machine=machine) != before


@pytest.mark.slow
def test_a_package_with_primitives_is_known_by_its_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(PLANE_PRODUCTS, folder / "site")
    paths = (str(folder / "site"), os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    assert not Printed().again
    assert Printed().again
    with (folder / "site" / "plane_products.py").open("a") as file:
        file.write("# changed\n")
    assert not Printed().again


@pytest.mark.usefixtures("folder")
def test_other_files_beside_packages_change_nothing() -> None:
    before = _named()
    for name in ("site/volume.h5", "out.tif"):
        Path(name).touch()
    assert _named() == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("phase", ["start", "planning", "finishing"])
def test_notes_of_runs_between_two_commands_change_only_exact_texts(phase: str) -> None:
    before, exact = _named(), _named(exact=True)
    assert before != exact
    for kind in get_args(Kind):
        note(kind, FixedSeconds(**{phase: 3.0}))
        assert _named() == before
        assert _named(exact=True) != exact


@pytest.mark.slow
def test_a_cached_text_tells_the_seconds_that_runs_noted_since(folder: Path) -> None:
    first = Printed()
    note("cpu", FixedSeconds(start=3.0, planning=3.0, finishing=1.0))
    note("gpu", FixedSeconds(start=50.0))
    again = Printed()
    assert again.again
    assert re.search(r"time +7\.\d s,? ", again.text)
    assert not re.search(r"time +7\.\d s,? ", first.text)
    shutil.rmtree(folder / "plans")
    anew = Printed()
    assert not anew.again
    assert anew.text == again.text
    exact = Printed("--json")
    assert not exact.again
    assert json.loads(exact.text)["time"]["around"]["start"] == 3.0


def test_a_text_for_another_machine_tells_no_seconds_of_this_one(folder: Path) -> None:
    there = CachedText(PlanText(("rate ", ", time ", ", once ", ""), 80, 7.75, 0.75), AROUND, None)
    store_text(folder / "text", there)
    note("cpu", FixedSeconds(start=30.0))
    assert cached_text(folder / "text") == "rate 8, time 10.0 s, once 3.0"
    store_text(folder / "text", there._replace(kind="cpu"))
    assert cached_text(folder / "text") == "rate 2, time 38.5 s, once 31.5"


def test_a_damaged_text_is_not_printed(folder: Path) -> None:
    file = folder / "plans" / "some.txt"
    assert cached_text(file) is None
    store_text(file, "layers\nand µs")
    assert cached_text(file) == "layers\nand µs"
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole.replace(b"layers", b"layerz"), b"layers"):
        file.write_bytes(damaged)
        assert cached_text(file) is None


def test_nothing_is_kept_of_large_and_missing_files_or_if_so_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.onnx").write_bytes(bytes(MOST_BYTES + 1))
    for name in ("model.onnx", "plans/missing.yaml"):
        assert text_file(Path(name), HERE, ()) is None
    for name in ("missing", "missing.yaml"):
        with pytest.raises(InvalidInput, match="no network of this name"):
            text_file(Path(name), HERE, ())
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, text_cache.NONE)
    assert text_file(Path("small.yaml"), HERE, ()) is None


@pytest.mark.slow
def test_a_plan_with_a_warning_is_not_printed_without_it(folder: Path) -> None:
    (folder / "costs.sqlite").write_bytes(b"no database" * 1000)
    for _ in range(2):
        assert not Printed().again
