"""HDF5 outputs are written completely, or keep their finished blocks under another name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from znni.core import system
from znni.core.errors import InvalidInput, RunFailed
from znni.core.option_types import StoredType
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.formats.hdf5.chunk_reader import chunk_places
from znni.volumes.formats.hdf5.new_file import make_output
from znni.volumes.formats.hdf5.output import Hdf5Output
from znni.volumes.formats.hdf5.writer import Hdf5Writer
from znni.volumes.ledger_entries import block_entry, identity_entry, line, plan_entry
from znni.volumes.ledger_file import LedgerFile, ledger_name
from znni.volumes.locate import describe_volume
from znni.volumes.partial_file import PartialFile, begin_flush


def new_output(path: Path) -> Hdf5Output:
    return Hdf5Output(path, NewOutput(2, Vec3(3, 70, 9)))


def test_an_output_is_chunked_described_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    output = new_output(path)
    long = "x" * 200_000  # larger than the 64 KiB of a plain HDF5 attribute
    output.begin({"plan": long, "voxel_offset": (1, 2, 3), "seconds": 0.0}, Vec3(3, 5, 9))
    first, second = Box(Vec3(0, 0, 0), Vec3(3, 5, 9)), Box(Vec3(0, 5, 0), Vec3(3, 70, 9))
    output.write(first, np.full((2, *first.size), 1, np.float32))
    assert not path.exists()
    with h5py.File(tmp_path / "out.h5.partial", locking=False) as partial:
        assert (partial["main"][:, :, :5] == 1).all()
        assert not partial["main"][:, :, 5:].any()
        assert partial["main"].attrs["plan"] == long
    output.write(second, np.full((2, *second.size), 2, np.float32))
    output.finish({"seconds": 0.5})
    assert sorted(tmp_path.iterdir()) == [path]
    with h5py.File(path) as file:
        main = file["main"]
        assert (main.shape, main.dtype, main.chunks) == ((2, 3, 70, 9), np.float32, (1, 3, 64, 9))
        assert main[0, 0, :, 0].tolist() == [1] * 5 + [2] * 65
        assert main.attrs["plan"] == long
        assert main.attrs["voxel_offset"].tolist() == [1, 2, 3]
    described = describe_volume(str(path))
    assert "/main  (2, 3, 70, 9) float32, chunks (1, 3, 64, 9)" in described
    assert "seconds: 0.5" in described
    assert "/ledger" not in described
    assert "xxx" not in described


def test_the_end_of_an_output_lists_no_chunks_unless_it_was_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All chunks of 2048 x 1024 x 1024 voxels with 3 maps take 0.05 s."""
    listed: list[h5py.Dataset] = []

    def noted(dataset: h5py.Dataset) -> Any:
        listed.append(dataset)
        return chunk_places(dataset)

    monkeypatch.setattr("znni.volumes.formats.hdf5.chunk_writer.chunk_places", noted)
    first, second = Box(Vec3(0, 0, 0), Vec3(3, 5, 9)), Box(Vec3(0, 5, 0), Vec3(3, 70, 9))
    output = new_output(tmp_path / "out.h5")
    output.begin({}, Vec3(3, 5, 9))
    output.write(first, np.zeros((2, *first.size), np.float32))
    output.abandon()
    for resumed in (True, False):
        listed.clear()
        name = "out.h5" if resumed else "other.h5"
        output = Hdf5Output(tmp_path / name, NewOutput(2, Vec3(3, 70, 9), resume=resumed))
        output.begin({}, Vec3(3, 5, 9))
        for box in (second,) if resumed else (first, second):
            output.write(box, np.ones((2, *box.size), np.float32))
        output.finish({})
        assert len(listed) == 1 + resumed


ATTRIBUTES: dict[str, Any] = {
    "seconds": 0.5, "command": "znni infer täxt.tif", "network": "few", "empty": "", "bytes": 2**40,
    "offset": (1, 2, 3), "flag": True, "flags": (True,) * 9, "short": np.int16(3), "texts": ["a"],
    "rows": np.arange(6.0).reshape(2, 3), "none": [], "plan": "x" * 70_000,
}  # fmt: skip


def whole_output(
    path: Path, size: Vec3, dtype: StoredType, maps: tuple[str, ...], attributes: dict[str, Any]
) -> NDArray[Any]:
    """Write an output of one block with two maps, and return its values."""
    seed = len(str(attributes["command"]))
    values = np.random.default_rng(seed).random((2, *size)).astype(dtype)
    output = Hdf5Output(path, NewOutput(2, size, dtype, maps=maps))
    output.begin({**attributes, "seconds": 0.0}, size)
    output.write(Box(Vec3(0, 0, 0), size), np.asfortranarray(values))
    output.finish({"seconds": attributes["seconds"]})
    return values


@pytest.mark.parametrize(
    ("size", "chunk", "dtype"),
    [
        (Vec3(3, 70, 9), Vec3(3, 70, 9), "float32"),
        (Vec3(2, 100, 140), Vec3(2, 50, 70), "uint8"),
    ],
)
def test_outputs_of_one_block_have_the_bytes_that_h5py_writes(
    tmp_path: Path, size: Vec3, chunk: Vec3, dtype: StoredType
) -> None:
    for number, name in enumerate(["täxt.tif", "tíxt.tif", "a.tif", "téxt.tif", "b.tif"]):
        command = f"znni infer {name}"
        attributes = ATTRIBUTES | {"command": command, "seconds": 1 / 3 + number}
        ours, theirs = tmp_path / f"ours-{number}.h5", tmp_path / f"theirs-{number}.h5"
        values = whole_output(ours, size, dtype, ("nuclei", "membranes"), attributes)
        with h5py.File(ours) as file:
            ledger = file["ledger"][()]
        with PartialFile(theirs) as disk, h5py.File(disk, "w") as file:
            early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            main = file.create_dataset(
                "main", values.shape, dtype, chunks=(1, *chunk), fill_time="never", dcpl=early
            )
            main.attrs.update(attributes)
            main.attrs["channel_names"] = ("nuclei", "membranes")
            main[...] = values
            file.create_dataset("ledger", data=ledger)
        assert ours.read_bytes() == Path(f"{theirs}.partial").read_bytes()


def test_chunks_of_an_output_of_one_block_hold_zeros_beyond_its_edges(tmp_path: Path) -> None:
    for name in ("first.h5", "second.h5"):
        values = whole_output(tmp_path / name, Vec3(2, 100, 149), "float16", (), ATTRIBUTES)
        with h5py.File(tmp_path / name) as file:
            main = file["main"]
            assert main.chunks == (1, 2, 50, 64)
            assert (main[()] == values).all()
            # Not what memory held there: outputs do not differ by it.
            _, stored = main.id.read_direct_chunk((0, 0, 0, 128))
            last = np.frombuffer(stored, np.float16).reshape(main.chunks)
            assert not last[..., 149 - 128 :].any()


def test_the_disk_is_given_whole_chunks_as_soon_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bytes] = []

    def flush(descriptor: int, place: int, length: int) -> None:
        there.append(system.read_at(descriptor, length, place))

    monkeypatch.setattr("znni.volumes.formats.hdf5.chunk_writer.begin_flush", flush)
    output = new_output(tmp_path / "out.h5")
    box = Box(Vec3(0, 0, 0), Vec3(3, 64, 9))  # as a chunk
    values = np.random.default_rng(0).random((2, *box.size), np.float32)
    output.begin({}, box.size)
    output.write(box, values)
    assert sorted(there) == sorted(each.tobytes() for each in values)
    rest = Box(Vec3(0, 64, 0), Vec3(3, 70, 9))  # a part of a chunk, which may be written again
    output.write(rest, np.ones((2, *rest.size), np.float32))
    assert len(there) == 2
    output.abandon()


def test_a_system_that_cannot_flush_beforehand_does_so_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, writes = os.pipe()
    begin_flush(writes, 0, 1)  # a pipe has no disk
    monkeypatch.setattr("znni.volumes.partial_file._sync_file_range", lambda: None)
    begin_flush(writes, 0, 1)
    os.close(reads)
    os.close(writes)
    output = new_output(tmp_path / "out.h5")
    box = Box(Vec3(0, 0, 0), Vec3(3, 70, 9))
    output.begin({}, Vec3(3, 64, 9))
    output.write(box, np.ones((2, *box.size), np.float32))
    output.finish({})
    with h5py.File(tmp_path / "out.h5") as file:
        assert (file["main"][()] == 1).all()


@pytest.mark.parametrize("asked", ["write", "go on", "finish", "abandon"])
def test_a_file_is_made_while_its_first_block_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    box, begun, goes_on = Box(Vec3(0, 0, 0), Vec3(3, 35, 9)), Event(), Event()
    told = list[str]()

    def slow(*arguments: Any) -> None:
        begun.set()
        assert goes_on.wait(60)
        make_output(*arguments)
        told.append("made")

    monkeypatch.setattr("znni.volumes.formats.hdf5.output.make_output", slow)
    output = new_output(tmp_path / "out.h5")
    output.begin({}, box.size)
    assert begun.wait(60)
    ask: dict[str, Callable[[], object]] = {
        "write": lambda: output.write(box, np.ones((2, *box.size), np.float32)),
        "go on": lambda: output.note_plan("a plan"),
        "finish": lambda: output.finish({}),
        "abandon": output.abandon,
    }
    waits = Thread(target=lambda: told.append(f"{asked} {ask[asked]() or ''}"))
    waits.start()
    goes_on.set()
    waits.join()
    assert [it.split()[0] for it in told] == ["made", asked.split(maxsplit=1)[0]]
    if asked == "abandon":
        assert told[1].endswith("out.h5 was not made")
        assert not list(tmp_path.iterdir())
    elif asked != "finish":
        output.abandon()


def test_a_file_that_cannot_be_made_fails_with_its_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("znni.volumes.formats.hdf5.output.make_output", fail)
    output, box = new_output(tmp_path / "out.h5"), Box(Vec3(0, 0, 0), Vec3(3, 35, 9))
    output.begin({}, box.size)
    for _ in range(2):
        with pytest.raises(RunFailed, match="No space left on device; make room"):
            output.write(box, np.ones((2, *box.size), np.float32))
    assert output.abandon().endswith("out.h5 was not made")
    assert not list(tmp_path.iterdir())


def test_an_abandoned_output_keeps_its_blocks_and_its_partial_name(tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    output = new_output(path)
    assert output.abandon() == f"{path} was not made"
    assert list(tmp_path.iterdir()) == []
    output = new_output(path)
    box = Box(Vec3(0, 0, 0), Vec3(3, 5, 9))
    output.begin({}, box.size)
    output.write(box, np.ones((2, *box.size), np.float32))
    assert "out.h5.partial holds 1 finished block; the same command goes on" in output.abandon()
    left = sorted(found.name for found in tmp_path.iterdir())
    assert left == ["out.h5.partial", "out.h5.partial.ledger"]
    new_output(path).abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.h5"
    output = new_output(path)
    box = Box(Vec3(0, 0, 0), Vec3(3, 35, 9))
    output.begin({}, box.size)
    output.write(box, np.ones((2, *box.size), np.float32))
    monkeypatch.setattr("znni.volumes.partial_file.os.fsync", full_disk)
    with pytest.raises(RunFailed, match=r"out\.h5\.partial: cannot be written: No space left"):
        output.finish({})
    assert "1 finished block" in output.abandon()
    assert not path.exists()


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_small_output_of_one_block_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.h5"
    box = Box(Vec3(0, 0, 0), Vec3(3, 70, 9))
    values = np.random.default_rng(0).random((2, *box.size), np.float32)

    def written(held: int) -> Hdf5Output:
        monkeypatch.setattr("znni.volumes.partial_output.HELD_BYTES", held)
        output = new_output(path)
        output.note_plan("a plan")
        output.begin({"plan": "a plan", "seconds": 0.0}, box.size)
        output.write(box, values)
        assert bool(Path(f"{path}.partial").stat().st_size) == (not held)
        assert (output.read(box) == values).all()
        return output

    found = []
    for held in (0, 1 << 20):
        written(held).finish({"seconds": 0.5})
        assert list(tmp_path.iterdir()) == [path]
        with h5py.File(path) as file:
            main, ledger = file["main"], file["ledger"][()].tobytes()
            assert (main[()] == values).all()
            found.append((dict(main.attrs), main.chunks, ledger))
        path.unlink()
    assert found[0] == found[1]
    output = written(1 << 20)
    monkeypatch.setattr("znni.volumes.partial_file.os.fsync", full_disk)
    with pytest.raises(RunFailed, match="cannot be written: No space left"):
        output.finish({"seconds": 0.5})
    assert output.abandon() == f"{path} was not made"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("patch", [Vec3(3, 70, 9), Vec3(3, 5, 9)])
def test_the_last_steps_of_an_output_may_come_later(tmp_path: Path, patch: Vec3) -> None:
    steps: list[Callable[[], None]] = []
    path, whole = tmp_path / "out.h5", Box(Vec3(0, 0, 0), Vec3(3, 70, 9))
    output = new_output(path)
    output.begin({}, patch)
    for box in whole.cut(patch):
        output.write(box, np.ones((2, *box.size), np.float32))
    output.finish({"seconds": 0.5}, lambda *both: steps.extend(both))
    partial = Path(f"{path}.partial")
    content = partial.read_bytes()
    wait, name = steps
    wait()
    assert not path.exists()
    with pytest.raises(InvalidInput, match="in use"):  # no other run takes it
        new_output(path)
    name()
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_held_output_is_made_again_if_its_run_is_killed_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the system in one piece, its first bytes last, and has no ledger beside it."""
    box, left = Box(Vec3(0, 0, 0), Vec3(3, 70, 9)), list[bytes]()
    path, killed = tmp_path / "done.h5", tmp_path / "killed.h5"
    write = PartialFile.write

    def noted(self: PartialFile, data: Any) -> int:
        written = write(self, data)
        left.append(self.root.read_bytes())
        return written

    monkeypatch.setattr(PartialFile, "write", noted)
    output = new_output(path)
    output.note_plan("a plan")
    output.begin({}, box.size)
    output.write(box, np.ones((2, *box.size), np.float32))
    output.finish({})
    assert list(tmp_path.iterdir()) == [path]
    first, whole = left
    assert whole == path.read_bytes()
    assert len(first) == len(whole)
    partial = Path(f"{killed}.partial")
    wanted = NewOutput(2, box.size, resume=True)
    for content in (b"", first[: len(first) // 2], first, whole):
        partial.write_bytes(content)
        assert not Hdf5Writer(str(killed)).resume_state(wanted).history
        output = Hdf5Output(killed, wanted)
        assert not output.resume_state.history
        output.abandon()
    for content in (whole[: len(whole) // 2], b"something else"):
        partial.write_bytes(content)
        with pytest.raises(InvalidInput, match=r"without the ledger killed\.h5\.partial\.ledger"):
            Hdf5Writer(str(killed)).resume_state(wanted)
        with pytest.raises(InvalidInput, match=r"without the ledger killed\.h5\.partial\.ledger"):
            Hdf5Output(killed, wanted)
        assert partial.read_bytes() == content


def test_a_larger_output_is_not_made_again_if_only_its_ledger_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, path = Box(Vec3(0, 0, 0), Vec3(3, 70, 9)), tmp_path / "out.h5"
    output = new_output(path)
    output.begin({}, box.size)
    output.write(box, np.ones((2, *box.size), np.float32))
    output.finish({})
    whole, partial = path.read_bytes(), Path(f"{path}.partial")
    path.rename(partial)
    monkeypatch.setattr("znni.volumes.formats.hdf5.output.HELD_BYTES", 2 * box.size.volume * 4 - 1)
    with pytest.raises(InvalidInput, match=r"without the ledger out\.h5\.partial\.ledger"):
        Hdf5Output(path, NewOutput(2, box.size, resume=True))
    assert partial.read_bytes() == whole


def test_the_ledger_of_an_earlier_run_is_emptied_before_a_held_output_is_written(
    tmp_path: Path,
) -> None:
    path, box = tmp_path / "out.h5", Box(Vec3(0, 0, 0), Vec3(3, 70, 9))
    ledger = Path(f"{path}.partial.ledger")
    half = Box(Vec3(0, 0, 0), Vec3(3, 35, 9))
    output = new_output(path)
    output.begin({}, half.size)
    output.write(half, np.ones((2, *half.size), np.float32))
    output.abandon()
    assert ledger.stat().st_size
    output = Hdf5Output(path, NewOutput(2, box.size, resume=False))
    assert ledger.read_bytes() == b""
    output.begin({}, box.size)
    output.write(box, np.ones((2, *box.size), np.float32))
    output.finish({})
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_output_asks_little_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems answer late, and there may be many small outputs."""
    asked: dict[str, int] = {}

    def count(name: str) -> None:
        function = getattr(os, name)

        def counted(*given: Any, **named: Any) -> Any:
            asked[name] = asked.get(name, 0) + 1
            return function(*given, **named)

        monkeypatch.setattr(os, name, counted)

    for name in ("stat", "statvfs", "open", "ftruncate", "pwrite"):
        count(name)
    new_output(tmp_path / "out.h5").abandon()
    assert asked.keys() == {"stat", "statvfs", "open"}
    assert asked["stat"] <= 5  # of some versions of Python, fewer go through this function
    assert (asked["statvfs"], asked["open"]) == (2, 3)


def test_the_plan_of_a_ledger_is_written_with_the_block_after_it(tmp_path: Path) -> None:
    partial = tmp_path / "out.h5.partial"
    ledger = LedgerFile(partial, NewOutput(1, Vec3(1, 1, 1), "uint8", identity={"the input": "a"}))
    ledger.note_plan("a plan")
    assert ledger_name(partial).read_bytes() == b""
    block = block_entry(Box(Vec3(0, 0, 0), Vec3(1, 1, 1)), "00000000")
    ledger.append(block)
    known = [identity_entry({"the input": "a"}), plan_entry("a plan"), block]
    assert ledger_name(partial).read_bytes() == b"".join(map(line, known))
    ledger.note_plan("another plan")
    ledger.settle()
    known.append(plan_entry("another plan"))
    assert ledger_name(partial).read_bytes() == b"".join(map(line, known))
    ledger.discard()


def test_a_block_smaller_than_the_plan_says_begins_the_file(tmp_path: Path) -> None:
    """As after memory ran out."""
    path = tmp_path / "out.h5"
    output = new_output(path)
    output.begin({}, Vec3(3, 70, 9))
    for start in (0, 35):
        box = Box(Vec3(0, start, 0), Vec3(3, start + 35, 9))
        output.write(box, np.full((2, *box.size), start, np.float32))
    output.finish({})
    with h5py.File(path) as file:
        assert file["main"][0, 0, :, 0].tolist() == [0] * 35 + [35] * 35


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_partial_file_keeps_its_first_failure(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "out") as file:
        assert file.write(b"ab") == 2
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file.fileno())
        os.close(full)
        assert file.write(b"cd") == 2  # HDF5 must not notice it
        assert file.failure is not None
        assert file.failure.strerror == "No space left on device"
        assert file.truncate(9) == 9
        with pytest.raises(OSError, match="No space left on device"):
            file.complete()
    assert (tmp_path / "out.partial").read_bytes() == b"ab"


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "out") as first:
        first.write(b"first")
        with pytest.raises(InvalidInput, match=r"out\.partial: is in use"):
            PartialFile(tmp_path / "out")
        first.complete()
    assert (tmp_path / "out").read_bytes() == b"first"
    with PartialFile(tmp_path / "out") as again:
        again.write(b"x")
        again.complete()
    assert (tmp_path / "out").read_bytes() == b"x"
