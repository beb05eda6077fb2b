"""Processes write blocks of an output that another one begins and whose ledger it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.same_output import OF_ITS_TIME
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.checksums import checksum_of
from znni.volumes.formats.zarr.shared_output import SharedZarr
from znni.volumes.ledger_entries import block_entry
from znni.volumes.locate import open_volume, writer_at

OUT = "out.zarr"
PATCH, SIZE = Vec3(2, 4, 4), Vec3(6, 8, 4)
WHOLE, FIRST = Box(Vec3(0, 0, 0), SIZE), Box(Vec3(0, 0, 0), PATCH)
WANTED = NewOutput(2, SIZE, identity={"the input": "of this test"})

pytestmark = pytest.mark.usefixtures("own_folder")


def coordinator() -> SharedZarr:
    output = writer_at(OUT).join(WANTED, lambda _: [WHOLE])
    assert isinstance(output, SharedZarr)
    output.note_plan("{}")
    output.begin(dict.fromkeys(OF_ITS_TIME, 0), PATCH)
    return output


def values(box: Box) -> np.ndarray[Any, Any]:
    return np.full((2, *box.size), float(sum(box.start)), np.float32)


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def complete(output: SharedZarr) -> None:
    output.finish({"seconds": 1.0})
    writer_at(OUT).gather("all", lambda plan, runs: {"plan": plan, "runs": len(runs)})


def test_blocks_of_other_processes_make_an_output() -> None:
    kept = coordinator()
    before = files()
    told: list[Mapping[str, Any]] = []
    sink = writer_at(OUT).blocks(WANTED, told.append)
    blocks = list(WHOLE.cut(PATCH))
    for box in blocks:
        sink.write(box, values(box))
    assert told == [block_entry(box, checksum_of(values(box))) for box in blocks]
    assert (sink.read(blocks[1]) == values(blocks[1])).all()
    after = files()
    assert {path: after[path] for path in before} == before, "neither ledger nor metadata"
    assert not [path for path in after.keys() - before.keys() if "c" not in path.parts]
    for entry in told:
        kept.note(entry)
    complete(kept)
    output = open_volume(OUT)
    assert all((output.read(box) == values(box)).all() for box in blocks)
    assert output.attribute("plan") == "{}"


def test_a_block_counts_only_when_it_is_noted() -> None:
    kept = coordinator()
    told: list[Mapping[str, Any]] = []
    sink = writer_at(OUT).blocks(WANTED, told.append)
    for box in WHOLE.cut(PATCH):
        sink.write(box, values(box))
    for entry in told[1:]:
        kept.note(entry)
    with pytest.raises(RunFailed, match="32 of 192 voxels are not computed yet"):
        complete(kept)
    again = coordinator()
    assert again.resume_state.history == [(box, True) for box in list(WHOLE.cut(PATCH))[1:]]
    again.note(told[0])
    complete(again)


def test_an_output_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match=r"out\.zarr: there is no unfinished output .*reach"):
        writer_at(OUT).blocks(WANTED, print)
    assert not files()
    kept = coordinator()
    other = NewOutput(3, SIZE)
    with pytest.raises(InvalidInput, match=r"float32 of shape \(2, 6, 8, 4\)"):
        writer_at(OUT).blocks(other, print)
    kept.abandon()


def test_formats_with_one_writer() -> None:
    for out in ("out.h5", "out.hdf5"):
        with pytest.raises(InvalidInput, match=r"only one process can write .*name a \.zarr"):
            writer_at(out).blocks(WANTED, print)


def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = coordinator()
    told: list[Mapping[str, Any]] = []
    sink = writer_at(OUT).blocks(WANTED, told.append)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("znni.volumes.shared_files.put_file", refuse)
    with pytest.raises(RunFailed, match="No space left on device; make room"):
        sink.write(FIRST, values(FIRST) + 1)
    assert told == []
    assert not [path for path in files() if path.name == "0"]
    kept.abandon()
