"""The benchmarks of the ledger: what runs withstand, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from command_line import znni
from quick_benchmarks import QUICK

from bench.ledger import compare_kills, compare_ledger
from bench.many_patches import OUTPUTS, ZNNI, many_patches
from bench.same_output import OF_ITS_TIME, difference
from bench.table import table
from znni.cli import INTERNAL_ERROR

pytestmark = pytest.mark.usefixtures("small_case")


def run_here(command: list[str], _out: Path) -> float:
    outcome = znni(*command[len(ZNNI) :])
    assert outcome.code == 0, outcome.err
    return 1.0


def stop_here(command: list[str], out: Path, _blocks: int, _after: float) -> bool:
    """In place of a kill: end a run after its third block."""

    @contextmanager
    def few_blocks() -> Iterator[Callable[..., None]]:
        reports = iter("123")

        def stop(_done: int, _all: int, first_words: str = "") -> None:
            if not first_words and next(reports) == "3":
                raise RuntimeError

        yield stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("znni.cli.progress.show_progress", few_blocks)
        assert znni(*command[len(ZNNI) :]).code == INTERNAL_ERROR
    return not out.exists()


@pytest.mark.slow_cases
@pytest.mark.parametrize("output", list(OUTPUTS))
def test_killed_runs_are_compared_with_one_that_was_not(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.ledger._finish", run_here)
    monkeypatch.setattr("bench.ledger._kill", stop_here)
    with many_patches(Path("tiny.yaml"), output, patch=8, patches=2) as case:
        row = compare_kills(case, times=2)
    assert (row["kills"], row["identical"], row["wrong_ledgers"], row["blocks"]) == (2, 2, 0, 8)
    assert row["blocks_at_kills"] == [3, 3]
    assert "tiny" in table("kills", [row])


def test_runs_with_a_ledger_take_turns_with_those_without() -> None:
    with many_patches(Path("tiny.yaml"), "hdf5", patch=8, patches=2) as case:
        row = compare_ledger(case, QUICK)
    assert row["blocks"] == 8
    assert row["rounds"] == len(row["all_with_seconds"]) == len(row["all_ledger_seconds"]) == 2
    assert 0 < row["ledger_seconds"] < row["with_seconds"]
    assert "tiny" in table("ledger", [row])


def write_hdf5(path: Path, value: float, seconds: float) -> None:
    with h5py.File(path, "w") as file:
        file["main"] = np.full((2, 3), value)
        file["main"].attrs.update(dict.fromkeys(OF_ITS_TIME, seconds))


def write_zarr(path: Path, value: float, seconds: float) -> None:
    array = zarr.create_array(f"{path}/0", data=np.full((2, 3), value))
    array.update_attributes(dict.fromkeys(OF_ITS_TIME, seconds))


@pytest.mark.parametrize(("write", "ending"), [(write_hdf5, ".h5"), (write_zarr, ".zarr")])
def test_outputs_are_the_same_but_for_what_was_measured(write, ending: str) -> None:  # type: ignore[no-untyped-def]
    one, same, other = (Path(name + ending) for name in ("one", "same", "other"))
    write(one, 1.0, 3.5)
    write(same, 1.0, 4.5)
    write(other, 2.0, 3.5)
    assert difference(one, same) == ""
    assert difference(one, other) != ""
    if ending == ".zarr":
        (same / "left").write_text("over")
        assert difference(one, same) == "the names of what is in them"
        metadata = other / "0" / "zarr.json"
        assert json.loads(metadata.read_text())["attributes"]["seconds"] == 3.5
