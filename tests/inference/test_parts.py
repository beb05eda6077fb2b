"""Parts of an output, computed one by one or at the same time, give what a single run gives."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, one_line, refused, succeeds, voxels, write_volume, znni
from interrupted_runs import OPTIONS, RUN, Interrupted, interrupt, whole
from paths import SUPPORT

from bench.same_output import difference
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.inference import api
from znni.inference.parts import finish
from znni.volumes import shared_ledger
from znni.volumes.formats.zarr.shared_output import SharedZarr
from znni.volumes.locate import open_volume, read_ledger
from znni.volumes.shared_files import LocalFiles
from znni.volumes.shared_ledger import SharedLedger

OUT = "out.zarr"
PARTIAL, LOGS = Path("out.zarr.partial"), Path("out.zarr.partial.ledger")

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


def compute(part: str, **options: Any) -> Any:
    return api.infer("volume.h5", "tiny.yaml", OUT, part=part, **OPTIONS | options)


def stop_part(part: str, after: int, **options: Any) -> None:
    """Compute a part until some blocks are finished."""
    left = after

    def stop(_done: int, _all: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Interrupted

    with pytest.raises(Interrupted):
        compute(part, progress=stop, **options)


def values(path: str | Path) -> Any:
    output = open_volume(path)
    return output.read(Box(Vec3(0, 0, 0), output.size))


def files() -> list[Path]:
    return sorted(path for path in (PARTIAL / "0" / "c").rglob("*") if path.is_file())


def undisturbed(**options: Any) -> Path:
    """Return an output of one part."""
    compute("0/1", **options)
    finish(OUT)
    return Path(OUT).rename("one-part.zarr")


def test_a_process_that_is_stopped_after_the_output_is_complete_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share_written = SharedZarr.finish

    def stopped_later(self: SharedZarr, *given: Any) -> None:
        share_written(self, *given)
        finish(OUT)
        raise Interrupted

    monkeypatch.setattr(SharedZarr, "finish", stopped_later)
    with pytest.raises(Interrupted) as stopped:
        compute("0/1")
    assert stopped.value.__notes__ == [f"{OUT} is complete"]
    assert values(OUT).any()


@pytest.mark.slow
@pytest.mark.parametrize("parts", [3, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sharded": True, "compression": "none", "dtype": "float16"},
        {"border": "same", "roi": np.s_[3:131, 2:, :17]},
    ],
    ids=["usual", "sharded", "region"],
)
def test_parts_give_what_one_run_gives(parts: int, options: dict[str, Any]) -> None:
    alone, one = whole(OUT, **options), undisturbed(**options)
    computed = 0
    for index in reversed(range(parts)):
        computed += compute(f"{index}/{parts}", **options).voxels
        assert not Path(OUT).exists()
    found = finish(OUT, recheck="all")
    assert difference(one, Path(OUT)) == ""
    assert (values(OUT) == values(alone)).all()
    assert read_ledger(OUT).checksums == read_ledger(str(alone)).checksums
    assert (found.parts, found.checked) == (parts, found.blocks)
    assert computed == open_volume(OUT).size.volume, "each voxel once"
    assert [path.name for path in Path().glob("out.*")] == [OUT]


def test_a_part_without_blocks_says_why() -> None:
    few = compute("0/9999")
    blocks = few.plan.patches
    assert few.voxels == 0
    assert str(few).split("\n")[0].partition("; time predicted")[0].endswith(
        f"; this part has no blocks, because the output has {blocks} blocks and is shared out to "
        f"9,999 parts; the other parts compute it"
    )  # fmt: skip
    assert "set the pace" not in str(few)
    last = compute("9998/9999")
    assert last.voxels > 0
    assert "no blocks" not in str(last)


def test_parts_at_the_same_time() -> None:
    one, errors = undisturbed(), []

    def run(part: str) -> None:
        try:
            compute(part)
        except BaseException as error:  # pytest does not see those of threads
            errors.append(error)

    # Two of each: the same block is written twice at the same time.
    threads = [threading.Thread(target=run, args=(f"{n % 4}/4",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    finish(OUT)
    assert difference(one, Path(OUT)) == ""


@pytest.mark.slow
def test_parts_killed_at_any_step() -> None:
    done = subprocess.run(
        [sys.executable, SUPPORT / "killed_runs.py", OUT, "31", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert len({row["blocks"] for row in rows}) > 2, "blocks were finished by then"
    assert [row for row in rows if row["difference"]] == []
    assert [row for row in rows if row["left"]] == []


def test_the_command_line() -> None:
    for index in range(2):
        said = succeeds(*RUN, "--out", OUT, "--part", f"{index}/2")
        assert f"out.zarr, part {index}/2: " in said
        assert said.endswith("when all parts are finished: znni finish out.zarr\n")
    assert "2 parts" in succeeds("finish", OUT)
    assert "is complete already" in refused("finish", OUT)
    assert "exists; delete it, or" in refused(*RUN, "--out", OUT, "--part", "0/2")
    assert znni("verify", OUT).code == 0


def test_more_parts_than_blocks() -> None:
    parts, options = 40, {"roi": np.s_[:80, :, :]}
    reports = [compute(f"{index}/{parts}", **options) for index in range(parts)]
    assert any(report.voxels == 0 for report in reports)
    assert all(str(report) for report in reports)
    assert 1 < finish(OUT).blocks < parts


def test_a_stopped_part_goes_on_with_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    one = undisturbed()
    stop_part("1/2", 2)
    compute("0/2")
    with pytest.raises(RunFailed, match=r"voxels are not computed yet, the first at "):
        finish(OUT)
    caplog.clear()
    report = compute("1/2")
    assert report.finished_before > 0
    assert "of this part finished" in caplog.text
    assert "--no-resume" not in caplog.text
    # Other shares of the rest: what is finished counts, whoever computed it.
    assert compute("0/3").voxels == compute("2/3").voxels == 0
    finish(OUT)
    assert difference(one, Path(OUT)) == ""


@pytest.mark.parametrize("damage", [b"", b"\x00" * 40, None], ids=["cut", "zeros", "deleted"])
def test_a_damaged_block_is_computed_again(damage: bytes | None) -> None:
    one = undisturbed()
    for index in range(2):
        compute(f"{index}/2")
    if damage is None:
        files()[0].unlink()
    else:
        files()[0].write_bytes(damage)
    with pytest.raises(RunFailed, match=r"1 block not as written, the first at 0:"):
        finish(OUT, recheck="all")
    with pytest.raises(RunFailed, match=r"are not computed yet, the first at 0:"):
        finish(OUT)
    assert compute("1/2").voxels == 0
    assert compute("0/2").voxels > 0
    finish(OUT)
    assert difference(one, Path(OUT)) == ""


def test_a_late_writer_of_other_bytes_is_found() -> None:
    for index in range(2):
        compute(f"{index}/2")
    box, checksums = next(iter(SharedLedger(LocalFiles(LOGS)).blocks().finished.items()))
    late = SharedLedger(LocalFiles(LOGS))
    late.append({"block": [*box.start, *box.stop], "checksum": checksums[0]})
    late.close()
    files()[0].write_bytes(b"other")
    with pytest.raises(RunFailed, match="1 block not as written"):
        finish(OUT, recheck="none")  # a block written twice is always read again


def test_a_log_cut_short_loses_its_last_entry_only() -> None:
    compute("0/2")
    known = len(SharedLedger(LocalFiles(LOGS)).blocks().finished)
    (log,) = LOGS.glob("*.log")
    text = log.read_bytes()
    assert b'"run"' in text.splitlines()[-1]
    entries = text.splitlines(keepends=True)[:-1]
    log.write_bytes(b"".join(entries)[:-3])
    assert len(SharedLedger(LocalFiles(LOGS)).blocks().finished) == known - 1
    compute("0/2")
    compute("1/2")
    finish(OUT, recheck="all")


def test_entries_add_up_in_any_order() -> None:
    box, other = [0, 0, 0, 2, 2, 2], [2, 0, 0, 4, 2, 2]
    entries = [
        {"block": box, "checksum": "a"},
        {"block": box, "checksum": "b"},
        {"struck": box, "times": 1},
        {"struck": box, "times": 1},
        {"block": other, "checksum": "c"},
        {"struck": other, "times": 1},
    ]
    generator = np.random.default_rng(0)
    for _ in range(20):
        found = shared_ledger.SharedBlocks()
        for index in generator.permutation(len(entries)):
            found.take(entries[index])
        assert {tuple(box.stop): sorted(known) for box, known in found.finished.items()} == {
            (2, 2, 2): ["a", "b"]
        }


def test_all_parts_follow_the_first_plan(caplog: pytest.LogCaptureFixture) -> None:
    compute("0/2")
    session = json.loads((LOGS / "session.json").read_text())
    compute("1/2", ram="2GiB")  # a plan made now would have other patches
    assert "another plan" not in caplog.text
    finish(OUT)
    assert read_ledger(OUT).plan == session["plan"]


def test_another_plan_is_refused() -> None:
    compute("0/2")
    other = api.plan("tiny.yaml", LONG_VOLUME, ram="2GiB", threads=1)
    with pytest.raises(InvalidInput, match="follow another plan than the given one"):
        compute("1/2", plan=other, ram="2GiB")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--part", "2/2"), "parts are counted from 0: the last of 2 is 1/2"),
        (("--part", "0/0"), "counted from 0"),
        (("--part", "one"), "give I/N, as 0/8 for the first of eight"),
        (("--part", "-1/2"), "give I/N"),
        (("--part", "0/2", "--overwrite"), "would delete what other parts have computed"),
        (("--part", "0/2", "--no-resume"), "would delete what other parts have computed"),
    ],
)
def test_options_that_no_part_can_have(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*RUN, "--out", OUT, *options)
    assert not PARTIAL.exists()


def test_outputs_of_one_writer() -> None:
    assert "only one process can write this format; name a .zarr" in refused(
        *RUN, "--out", "out.h5", "--part", "0/2"
    )
    with pytest.raises(InvalidInput, match="an array in memory is not computed in parts"):
        api.infer("volume.h5", "tiny.yaml", np.zeros(3), part="0/2")
    for out in ("out.h5", "nothing.zarr"):
        assert "part" in refused("finish", out)


def test_parts_and_a_single_run_do_not_mix() -> None:
    interrupt(OUT, 2)
    assert "is the unfinished output of a single run" in refused(
        *RUN, "--out", OUT, "--part", "0/2"
    )
    assert "is the unfinished output of a single run" in refused("finish", OUT)
    succeeds(*RUN, "--out", OUT)
    Path(OUT).rename("done.zarr")
    compute("0/2")
    for options in ((), ("--no-resume",), ("--overwrite",)):
        assert "is computed in parts; give" in refused(*RUN, "--out", OUT, *options)
    assert "is computed in parts" in znni(*RUN, "--out", OUT, "--dry-run").out
    compute("1/2")
    finish(OUT)


def test_parts_of_something_else() -> None:
    compute("0/2")
    assert "differs in the type of the output (then: float32; now: uint8)" in refused(
        *RUN, "--out", OUT, "--part", "1/2", "--dtype", "uint8"
    )
    write_volume(voxels(LONG_VOLUME) + 1)
    outcome = znni(*RUN, "--out", OUT, "--part", "1/2")
    assert outcome.code == 2
    assert "differs in the input's" in one_line(outcome.err)


def test_a_folder_of_something_else_is_left_alone() -> None:
    PARTIAL.mkdir()
    (PARTIAL / "mine").write_text("x")
    assert "is an unfinished output of something else" in refused(
        *RUN, "--out", OUT, "--part", "0/2"
    )
    assert (PARTIAL / "mine").read_text() == "x"
    (PARTIAL / "mine").unlink()
    compute("0/1")
    (LOGS / "session.json").write_text("{")
    assert "session.json: cannot be read" in refused(*RUN, "--out", OUT, "--part", "0/2")


def test_a_part_that_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    compute("0/2")

    def fail(*_arguments: object, **_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("znni.engine.volume_runner.run_volume", fail)
    outcome = znni(*RUN, "--out", OUT, "--part", "1/2")
    assert outcome.code == 4
    assert "memory ran out under the plan that all parts follow" in outcome.err
    assert "out.zarr is not finished; the same command goes on from there" in (outcome.err)
