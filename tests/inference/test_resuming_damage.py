"""Tests that damaged parts of an unfinished output are computed again or named."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from command_line import LONG_VOLUME, read_main, refused, voxels, znni
from interrupted_runs import OUTPUTS, RUN, interrupt, resumed, whole
from small_disk import small_disk

from bench.same_output import difference
from znni.volumes.formats.hdf5.chunk_writer import ChunkWriter
from znni.volumes.formats.zarr.chunk_writer import ZarrChunks
from znni.volumes.ledger_entries import parse

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


def zero_chunk(partial: Path) -> None:
    with h5py.File(partial, "r") as file:
        place = file["main"].id.get_chunk_info_by_coord((1, 0, 0, 0)).byte_offset
    with partial.open("r+b") as file:
        file.seek(place)
        file.write(bytes(4096))


def truncate_chunk(partial: Path) -> None:
    chunk = partial / "0" / "c" / "1" / "0" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-100])


def empty_chunk(partial: Path) -> None:
    (partial / "0" / "c" / "0" / "0" / "0" / "0").write_bytes(b"")


def delete_chunk(partial: Path) -> None:
    (partial / "0" / "c" / "0" / "0" / "0" / "0").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("out", "damage", "options"),
    [
        ("out.h5", zero_chunk, {}),
        ("out.zarr", truncate_chunk, {}),
        ("out.zarr", truncate_chunk, {"compression": "none"}),
        ("out.zarr", truncate_chunk, {"sharded": True}),
        ("out.zarr", empty_chunk, {}),
        ("out.zarr", delete_chunk, {}),
    ],
)
def test_a_damaged_block_is_computed_again(
    out: str, damage: Any, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    expected = whole(out, **options)
    partial = interrupt(out, 5, **options)
    damage(partial)
    flags = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    said = resumed(caplog, out, *flags)
    assert "damaged, to be computed again" in said
    assert difference(expected, Path(out)) == ""


def test_a_file_of_another_program_among_the_chunks(caplog: pytest.LogCaptureFixture) -> None:
    expected = whole("out.zarr")
    (interrupt("out.zarr") / "0" / "c" / ".DS_Store").write_bytes(b"of a file manager")
    resumed(caplog, "out.zarr")
    Path("out.zarr/0/c/.DS_Store").unlink()
    assert difference(expected, Path("out.zarr")) == ""


def cut(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[:-9])


def scribble(ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:12] + b"x" + lines[3][13:]
    ledger.write_bytes(b"".join(lines))


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("damage", [cut, scribble])
def test_a_damaged_ledger_counts_as_far_as_it_is_whole(
    out: str, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = whole(out)
    partial = interrupt(out)
    damage(Path(f"{partial}.ledger"))
    resumed(caplog, out)
    assert difference(expected, Path(out)) == ""


@pytest.mark.parametrize("out", OUTPUTS)
def test_an_unfinished_output_without_its_ledger(out: str) -> None:
    partial = interrupt(out)
    Path(f"{partial}.ledger").unlink()
    said = refused(*RUN, "--out", out)
    assert said.startswith(
        f"{partial}: is an unfinished output without the ledger {partial}.ledger"
    )
    assert znni(*RUN, "--out", out, "--overwrite").code == 0


def test_a_ledger_of_anything() -> None:
    for text in (b"", b"x", b"\n", b"00000000 {}\n", b'd9dc7e0f "plan"\n', bytes(range(256))):
        assert parse(text) == (None, 0)


def test_a_new_file_that_hdf5_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("bad heap")

    monkeypatch.setattr("znni.volumes.formats.hdf5.output.ChunkWriter", fail)
    said = refused(*RUN, "--out", "out.h5", code=4)
    assert said == (
        "out.h5.partial: HDF5 cannot read what was just written: bad heap; check the disk, or "
        "write elsewhere; out.h5 was not made"
    )


@pytest.mark.parametrize(("out", "writer"), [("out.h5", ChunkWriter), ("out.zarr", ZarrChunks)])
def test_blocks_that_go_astray(
    out: str, writer: type[ChunkWriter | ZarrChunks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks vanish, for example because the index of an unfinished output's chunks is damaged."""
    interrupt(out)
    monkeypatch.setattr(writer, "write", lambda *_: None)
    said = refused(*RUN, "--out", out, code=4)
    assert re.search(r"out\.\w+\.partial: \d+ blocks cannot be read again as written: ", said)
    assert "--no-resume to start afresh" in said
    assert not Path(out).exists()


def test_a_block_of_the_input_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input's samples would find the damaged block before it is reached."""
    monkeypatch.setattr("znni.volumes.fingerprint.SAMPLES", 0)
    group = zarr.create_group("in.zarr")
    group.create_array("raw", data=voxels(LONG_VOLUME), chunks=(10, 20, 23))
    run = ("infer", "in.zarr", *RUN[2:])
    assert znni(*run, "--out", "alone.h5").code == 0
    chunk = Path("in.zarr/raw/c/10/0/0")
    stored = chunk.read_bytes()
    chunk.write_bytes(stored[:-30])
    said = refused(*run, "--out", "out.h5", code=4)
    assert "in.zarr:/raw: cannot be read at " in said
    assert re.search(r"out.h5.partial holds \d+ finished blocks; the same com", said), said
    assert "goes on from there, if the input is as it was when that began, its time " in said
    chunk.write_bytes(stored)
    assert "were finished before" in znni(*run, "--out", "out.h5").out
    np.testing.assert_array_equal(read_main("alone.h5"), read_main("out.h5"))


@pytest.mark.parametrize("out", OUTPUTS)
def test_a_disk_that_may_only_be_read(
    out: str, own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(own_folder, "1m") as disk:
        interrupt(f"disk/{out}")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        said = refused(*RUN, "--out", f"disk/{out}")
        assert (
            said == f"disk/{out}: cannot be written there: Read-only file system; write elsewhere"
        )
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        resumed(caplog, f"disk/{out}")
