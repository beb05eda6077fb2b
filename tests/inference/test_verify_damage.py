"""Tests of outputs with damaged blocks: these are counted, and all others are still checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import LONG_VOLUME, refused, succeeds

import znni
from znni.core.errors import Unreachable
from znni.volumes.locate import read_ledger

AGAIN = "compute it again by the command that znni info shows, after deleting it"


pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


def damage_hdf5(name: str, **filters: Any) -> None:
    """Store an output again with a filter, as other programs may, and damage one chunk."""
    with h5py.File(name, "r+") as file:
        values, attributes = file["main"][()], dict(file["main"].attrs)
        del file["main"]
        main = file.create_dataset("main", data=values, chunks=(2, 30, 5, 6), **filters)
        main.attrs.update(attributes)
        chunk = main.id.get_chunk_info(0)
    with Path(name).open("r+b") as stored:
        stored.seek(chunk.byte_offset)
        stored.write(b"\xff" * 60)


def damage_zarr(name: str) -> None:
    chunk = next(path for path in sorted(Path(name, "0", "c").rglob("*")) if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-30])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["gzip", "fletcher32", "zarr", "sharded"])
def test_blocks_that_cannot_be_read(form: str) -> None:
    plan = znni.plan("tiny.yaml", (33, *LONG_VOLUME[1:]), threads=1)
    out = "out.h5" if form in ("gzip", "fletcher32") else "out.zarr"
    znni.infer("volume.h5", "tiny.yaml", out, plan=plan, sharded=form == "sharded")
    blocks = len(read_ledger(out).checksums)
    if form == "gzip":
        damage_hdf5(out, compression="gzip")
    elif form == "fletcher32":
        damage_hdf5(out, fletcher32=True)
    else:
        damage_zarr(out)
    found = znni.verify(out, voxels=200, seed=1)
    assert found.blocks.checked == blocks
    assert 1 <= len(found.blocks.damaged) < blocks
    assert found.blocks.unreadable
    assert 0 < found.unreadable < 200
    assert found.wrong == 0
    said = refused("verify", out, "--voxels", 200, "--seed", 1, code=5)
    assert said.startswith(f"{out}: is damaged; {200 - found.unreadable} voxels computed again")
    assert f", {found.unreadable} cannot be read (seed 1), largest error " in said
    assert f"the first one at {found.blocks.damaged[0]} ({found.blocks.unreadable}); " in said
    assert "; check the disk, or copy the output again; " in said
    assert said.endswith("if that does not help, " + AGAIN)
    assert not znni.verify(out, voxels=200, blocks=0, seed=1).agrees


def test_an_output_of_which_nothing_can_be_read() -> None:
    znni.infer("volume.h5", "tiny.yaml", "out.zarr", roi=np.s_[2:3, 5:7, 5:7])
    for chunk in Path("out.zarr/0/c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"no chunk")
    found = znni.verify("out.zarr", voxels=5, seed=1)
    assert (found.unreadable, found.wrong, found.at) == (5, 0, None)
    assert "0 voxels computed again in float64, 5 cannot be read (seed 1); 1 b" in str(found)


@pytest.mark.parametrize("blocks", [None, 0], ids=["blocks", "voxels"])
@pytest.mark.parametrize(
    ("out", "error"),
    [
        ("memory://out.zarr", ConnectionRefusedError(111, "Connection refused")),
        ("memory://out.zarr", OSError(5, "Please reduce your request rate")),
        ("out.zarr", TimeoutError(110, "Connection timed out")),
        ("out.zarr", PermissionError(13, "Permission denied")),
    ],
)
@pytest.mark.usefixtures("memory_files")
def test_an_output_out_of_reach_is_not_damaged(
    out: str, error: OSError, blocks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr")
    znni.infer("volume.h5", "tiny.yaml", out, roi=np.s_[2:3, 5:7, 5:7])
    given = ("verify", out, "--voxels", 2, *(() if blocks is None else ("--blocks", blocks)))
    succeeds(*given)
    for store in (zarr.storage.LocalStore, zarr.storage.FsspecStore):
        get = store.get

        async def fail(self: Any, key: str, *rest: Any, get: Any = get, **options: Any) -> Any:
            if "/c/" in key:
                raise error
            return await get(self, key, *rest, **options)

        monkeypatch.setattr(store, "get", fail)
    said = refused(*given, code=Unreachable.exit_code)
    assert ": cannot be read at " in said
    assert f": {error.strerror}; check " in said
    assert "overwrite" not in said
