"""A run that was interrupted goes on where it was, to the same bytes, or says why it does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from command_line import read_main, refused, voxels, write_case, znni
from fakes import Fake, fake_catalogue

from bench.same_output import difference
from znni import api
from znni.errors import InvalidInput
from znni.plan_file import save_plans
from znni.volumes.hdf5_chunks import ChunkWriter
from znni.volumes.ledger import checksum_of, parse, read_ledger
from znni.volumes.locate import open_volume
from znni.volumes.zarr_chunks import ZarrChunks

SCRIPT = Path(__file__).with_name("killed_runs.py")
SHAPE = (140, 20, 23)
OPTIONS: dict[str, Any] = {"ram": "512.5MiB", "threads": 1}
RUN = ("infer", "volume.h5", "--net", "tiny.yaml", "--ram", "512.5MiB", "--threads", "1")
OUTPUTS = ("out.h5", "out.zarr")


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_case(tmp_path)
    write_volume(tmp_path / "volume.h5")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    return tmp_path


def write_volume(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["raw"] = voxels(SHAPE)


def whole(name: str, **options: Any) -> Path:
    """The output of a run that nothing interrupts, moved out of the way."""
    api.infer("volume.h5", "tiny.yaml", name, **OPTIONS | options)
    return Path(name).rename(f"alone-{name}")


def interrupt(name: str, after: int = 3, source: str = "volume.h5", **options: Any) -> Path:
    """An output of which so many blocks are finished."""
    blocks = 0

    def stop(_done: int, _all: int) -> None:
        nonlocal blocks
        blocks += 1
        if blocks == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        api.infer(source, "tiny.yaml", name, progress=stop, **OPTIONS | options)
    assert not Path(name).exists()
    return Path(f"{name}.partial")


@pytest.fixture
def resumes(caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """A command that must go on with an output, and end with the whole of it."""

    def run(name: str, *options: str) -> str:
        caplog.clear()
        outcome = znni(*RUN, "--out", name, *options)
        assert outcome.code == 0, outcome.err
        assert "going on where an earlier run stopped, with " in caplog.text
        assert "were finished before" in outcome.out
        return caplog.text

    return run


@pytest.mark.parametrize(("out", "stride"), [("out.h5", 11), ("out.zarr", 19)])
def test_killed_at_any_step(out: str, stride: int) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, out, str(stride)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert len({row["blocks"] for row in rows}) > 2, "blocks were finished by then"
    assert [row for row in rows if row["difference"]] == []
    assert [row for row in rows if row["left"]] == []


@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("out.h5", {}),
        ("out.zarr", {}),
        ("out.zarr", {"sharded": True, "compression": "none", "dtype": "float16"}),
    ],
)
def test_an_interrupted_run_computes_only_what_is_left(out: str, options: dict[str, Any]) -> None:
    expected = whole(out, **options)
    interrupt(out, 2, **options)
    interrupt(out, 3, **options)
    done: list[int] = []
    report = api.infer(
        "volume.h5", "tiny.yaml", out, progress=lambda now, _: done.append(now), **OPTIONS | options
    )
    assert difference(expected, Path(out)) == ""
    assert done[0] == report.finished_before > 0
    assert report.finished_before + report.voxels == read_shape(out)
    assert sorted(path.name for path in Path().glob("out.*")) == [out]


def read_shape(out: str) -> int:
    return open_volume(out).size.volume


@pytest.mark.parametrize("out", OUTPUTS)
def test_the_ledger_of_an_output(out: str, resumes: Callable[..., str]) -> None:
    partial = interrupt(out, 3)
    blocks = read_ledger(str(partial)).checksums
    assert len(blocks) == 3
    resumes(out)
    found = read_ledger(out)
    assert blocks.items() <= found.checksums.items()
    volume = open_volume(out if out.endswith("zarr") else f"{out}:/main")
    assert all(checksum_of(volume.read(box)) == known for box, known in found.checksums.items())
    assert sum(box.size.volume for box in found.checksums) == volume.size.volume
    assert "the weights" in found.identity
    with pytest.raises(InvalidInput, match=r"volume\.h5: has no ledger of its blocks"):
        read_ledger("volume.h5")


def change_network() -> None:
    text = Path("tiny.yaml").read_text()
    Path("tiny.yaml").write_text(text.replace("activation: relu", "activation: tanh"))


def change_scaling() -> None:
    text = Path("tiny.yaml").read_text()
    Path("tiny.yaml").write_text(text.replace("scale: 0.01", "scale: 0.02"))


def change_input() -> None:
    times = Path("volume.h5").stat()
    Path("volume.h5").unlink()
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = voxels(SHAPE) + 1
    os.utime("volume.h5", ns=(times.st_atime_ns, times.st_mtime_ns))


def change_time() -> None:
    os.utime("volume.h5", ns=(10**18, 10**18 + 1))


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        (None, ("--random-weights", "1"), r"the weights \([0-9a-f]{16} then, [0-9a-f]{16} now\)"),
        (change_network, (), "the network"),
        (change_scaling, (), r"the scaling of the input \(value \* 0.01 \+ -1.0 then, value"),
        (change_input, (), "the input's values"),
        (change_time, (), r"the input's time of change \(.* then, 2001-09-09 01:46:40.000000001 U"),
        (None, ("--border", "same"), r"the border \(valid then, same, reflect now\)"),
        (None, ("--dtype", "uint8"), r"the type of the output \(float32 then, uint8 now\)"),
        (None, ("--roi", ":100,:,:"), r"the region \(0:139,2:17,3:19 then, 0:100,2:17,3:19 now\)"),
    ],
)
def test_another_run_is_not_mixed_with(
    out: str, change: Any, options: tuple[str, ...], named: str
) -> None:
    partial = interrupt(out)
    if change:
        change()
    said = refused(*RUN, "--out", out, *options)
    assert said.startswith(f"{partial}: holds 3 finished blocks of another run, which differs in")
    assert re.search(named, said), said
    assert "resume=False (--no-resume) to start afresh" in said
    assert len(read_ledger(str(partial)).checksums) == 3
    outcome = znni(*RUN, "--out", out, *options, "--overwrite")
    assert outcome.code == 0, outcome.err
    assert "finished before" not in outcome.out


def test_another_dataset_of_the_same_file_is_another_input() -> None:
    with h5py.File("both.h5", "w") as file:
        file["one"], file["other"] = voxels(SHAPE), voxels(SHAPE) + 1
    run = ("infer", "both.h5", *RUN[2:], "--out", "out.h5", "--dataset")
    interrupt("out.h5", source="both.h5:/one")
    assert "differs in the input's values (" in refused(*run, "other")
    assert "were finished before" in znni(*run, "one").out


@pytest.mark.parametrize("out", OUTPUTS)
def test_starting_afresh_and_replacing(out: str, resumes: Callable[..., str]) -> None:
    interrupt(out)
    outcome = znni(*RUN, "--out", out, "--no-resume")
    assert outcome.code == 0, outcome.err
    assert "finished before" not in outcome.out
    os.rename(out, "kept-" + out)  # noqa: PTH104
    interrupt(out)
    os.rename("kept-" + out, out)  # noqa: PTH104
    assert "exists; give overwrite=True" in refused(*RUN, "--out", out)
    resumes(out, "--overwrite")


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
    out: str, damage: Any, options: dict[str, Any], resumes: Callable[..., str]
) -> None:
    expected = whole(out, **options)
    partial = interrupt(out, 5, **options)
    damage(partial)
    flags = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    said = resumes(out, *flags)
    assert "damaged, to be computed again" in said
    assert difference(expected, Path(out)) == ""


def cut(ledger: Path) -> None:
    ledger.write_bytes(ledger.read_bytes()[:-9])


def scribble(ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:12] + b"x" + lines[3][13:]
    ledger.write_bytes(b"".join(lines))


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("damage", [cut, scribble])
def test_a_damaged_ledger_counts_as_far_as_it_is_whole(
    out: str, damage: Any, resumes: Callable[..., str]
) -> None:
    expected = whole(out)
    partial = interrupt(out)
    damage(Path(f"{partial}.ledger"))
    resumes(out)
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


def test_an_unfinished_file_that_hdf5_cannot_read() -> None:
    partial = interrupt("out.h5")
    partial.write_bytes(partial.read_bytes()[:1000])
    said = refused(*RUN, "--out", "out.h5")
    assert said.startswith("out.h5.partial: cannot be gone on with, as HDF5 cannot read it: ")
    assert znni(*RUN, "--out", "out.h5", "--no-resume").code == 0


def test_an_unfinished_file_whose_attributes_hdf5_cannot_read() -> None:
    """Which shows at the end, when they are brought up to date."""
    partial = interrupt("out.h5")
    stored = bytearray(partial.read_bytes())
    place = stored.index(b"bottleneck\0")
    stored[place - 6 : place - 4] = b"\xff\xff"  # the length of that name
    partial.write_bytes(stored)
    said = refused(*RUN, "--out", "out.h5")
    assert "out.h5.partial: cannot be gone on with, as HDF5 cannot read it: " in said
    assert not Path("out.h5").exists()
    assert znni(*RUN, "--out", "out.h5", "--no-resume").code == 0


@pytest.mark.parametrize(("out", "writer"), [("out.h5", ChunkWriter), ("out.zarr", ZarrChunks)])
def test_blocks_that_go_astray(
    out: str, writer: type[ChunkWriter | ZarrChunks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where what leads to the chunks of an unfinished output is damaged."""
    interrupt(out)
    monkeypatch.setattr(writer, "write", lambda *_: None)
    said = refused(*RUN, "--out", out, code=4)
    assert re.search(r"out\.\w+\.partial: \d+ blocks cannot be read again as written: ", said)
    assert "resume=False (--no-resume) to start afresh" in said
    assert not Path(out).exists()


def test_an_unfinished_zarr_that_cannot_be_opened() -> None:
    partial = interrupt("out.zarr")
    text = (partial / "0" / "zarr.json").read_text()
    (partial / "0" / "zarr.json").write_text("{")
    said = refused(*RUN, "--out", "out.zarr")
    assert said.startswith("out.zarr.partial: cannot be gone on with: ")
    (partial / "0" / "zarr.json").write_text(text.replace("139,", "140,", 1))
    said = refused(*RUN, "--out", "out.zarr")
    assert "it has float32 of shape (2, 140, 15, 16), and the output is float32 of (2, 139," in said
    assert znni(*RUN, "--out", "out.zarr", "--no-resume").code == 0


def test_the_plan_is_that_which_the_run_began_with() -> None:
    expected = whole("out.h5")
    interrupt("out.h5")
    assert api.plan("tiny.yaml", SHAPE, ram="1GiB", threads=1).patch.z > 100
    report = api.infer("volume.h5", "tiny.yaml", "out.h5", threads=1)
    assert report.plan.patch.z < 30
    assert difference_of_values(expected, Path("out.h5")) == 0
    interrupt("less.h5")
    said = refused(*RUN[:-4], "--ram", "512.1MiB", "--out", "less.h5")
    assert "the plan takes " in said
    assert "that is the plan of the unfinished output: give another one to go on with" in said
    said = refused(*RUN[:-2], "--threads", "2", "--out", "less.h5")
    assert "the plan is for 1 thread, not 2" in said


def test_a_change_that_no_sample_sees_is_found_by_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.fingerprint.SAMPLES", 0)
    monkeypatch.setattr("znni.volumes.fingerprint.OF_FILE", 0)
    partial = interrupt("out.h5")
    change_input()
    said = refused(*RUN, "--out", "out.h5")
    assert said.startswith("the finished block 40:60,0:15,0:16 comes out differently now, by ")
    assert "resume=False (--no-resume) to start afresh" in said
    assert len(read_ledger(str(partial)).checksums) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_other_bits_of_the_same_values_are_told(
    dtype: str, monkeypatch: pytest.MonkeyPatch, resumes: Callable[..., str]
) -> None:
    interrupt("out.h5", dtype=dtype)
    run = Fake._reference

    def nearly(self: Fake, *arguments: Any) -> Any:
        return run(self, *arguments) * np.float32(1 + 1e-6)

    monkeypatch.setattr(Fake, "_reference", nearly)
    said = resumes("out.h5", "--dtype", dtype)
    assert "comes out the same but for rounding" in said


def test_another_plan_may_be_given(resumes: Callable[..., str]) -> None:
    expected = whole("out.h5")
    interrupt("out.h5")
    plan = api.plan("tiny.yaml", SHAPE, ram="513MiB", threads=1, input_itemsize=1)
    save_plans(Path("plan.json"), [plan])
    said = resumes("out.h5", "--plan", "plan.json", "--ram", "513MiB")
    assert "goes on with another plan than it has" in said
    assert difference_of_values(expected, Path("out.h5")) < 1e-6


def difference_of_values(one: Path, other: Path) -> float:
    return float(np.abs(read_main(one) - read_main(other)).max())


def test_a_block_of_the_input_that_cannot_be_read() -> None:
    group = zarr.create_group("in.zarr")
    group.create_array("raw", data=voxels(SHAPE), chunks=(10, 20, 23))
    run = ("infer", "in.zarr", *RUN[2:])
    assert znni(*run, "--out", "alone.h5").code == 0
    chunk = Path("in.zarr/raw/c/10/0/0")
    stored = chunk.read_bytes()
    chunk.write_bytes(stored[:-30])
    with unsampled():
        said = refused(*run, "--out", "out.h5", code=4)
        assert "in.zarr:/raw: cannot be read at " in said
        assert "out.h5.partial holds " in said
        chunk.write_bytes(stored)
        assert "were finished before" in znni(*run, "--out", "out.h5").out
    np.testing.assert_array_equal(read_main("alone.h5"), read_main("out.h5"))


@contextmanager
def unsampled() -> Iterator[None]:
    """Without the samples of the input that would find the block before it is reached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("znni.volumes.fingerprint.SAMPLES", 0)
        yield


@pytest.mark.parametrize("out", OUTPUTS)
def test_a_disk_that_may_only_be_read(out: str, folder: Path, resumes: Callable[..., str]) -> None:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        interrupt(f"disk/{out}")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        said = refused(*RUN, "--out", f"disk/{out}")
        assert said == f"disk/{out}: cannot be written there: Read-only file system"
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        resumes(f"disk/{out}")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_mask_does_not_change_what_a_finished_block_is_held_to() -> None:
    """It had another plan, in whose larger blocks voxels outside the mask were computed."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[::30, 10, 11] = 1
    plans = api.search("tiny.yaml", SHAPE, input_itemsize=1, **OPTIONS).fastest(10)
    large = max(plans, key=lambda plan: plan.patch.volume)
    small = min(plans, key=lambda plan: plan.patch.volume)
    assert small.patch.volume < large.patch.volume
    interrupt("out.h5", after=1, plan=large, mask=mask)
    api.infer("volume.h5", "tiny.yaml", "out.h5", plan=small, mask=mask, **OPTIONS)
    assert Path("out.h5").exists()
