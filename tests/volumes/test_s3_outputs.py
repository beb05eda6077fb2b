"""Outputs at URLs that several processes write: stopped, killed, throttled and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from command_line import refused, succeeds, znni
from interrupted_runs import OPTIONS, RUN, Interrupted
from paths import SUPPORT
from s3_server import S3, never, serve

from bench.same_output import difference
from znni.core.errors import InvalidInput, RunFailed, Unreachable
from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.inference import api
from znni.inference.parts import finish
from znni.volumes import remote_files
from znni.volumes.locate import open_volume, read_ledger, writer_at
from znni.volumes.remote_files import RemoteFiles
from znni.volumes.shared_ledger import SharedLedger

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives", "memory_files")

buckets = count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    application = S3()
    environment, stop = serve(application)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield application
    stop()


@pytest.fixture
def s3(server: S3) -> Iterator[S3]:
    server.requests.clear()
    yield server
    server.faults = server.lost = never


@pytest.fixture
def bucket(s3: S3) -> str:  # noqa: ARG001
    name = f"bucket{next(buckets)}"
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://out.zarr"
    return f"{request.getfixturevalue('bucket')}/folder/out.zarr"


@pytest.fixture
def at_s3(bucket: str) -> str:
    return f"{bucket}/out.zarr"


def compute(place: str, part: str, **options: Any) -> Any:
    return api.infer("volume.h5", "tiny.yaml", place, part=part, **OPTIONS | options)


def stop_part(place: str, part: str, after: int) -> None:
    """Compute a part until some blocks are finished."""
    left = after

    def stop(_done: int, _all: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Interrupted

    with pytest.raises(Interrupted):
        compute(place, part, progress=stop)


def undisturbed() -> Path:
    """Return a local output of one part."""
    compute("out.zarr", "0/1")
    finish("out.zarr")
    return Path("out.zarr").rename("one-part.zarr")


def fetched(place: str) -> Path:
    """Return a local copy of an output, which must be all that is left."""
    files, path = fsspec.core.url_to_fs(place)
    files.invalidate_cache()
    folder = path.rpartition("/")[0]
    assert [name.rpartition("/")[2] for name in files.ls(folder, detail=False)] == ["out.zarr"]
    files.get(path, "fetched.zarr", recursive=True)
    return Path("fetched.zarr")


def ledger(place: str) -> SharedLedger:
    return SharedLedger(RemoteFiles(f"{place}.partial.ledger"))


@pytest.mark.slow
def test_parts_at_a_url_give_the_bytes_of_a_folder(place: str) -> None:
    one = undisturbed()
    stop_part(place, "1/3", 2)
    known = len(ledger(place).blocks().finished)
    assert known > 0, "the log was stored when the run stopped"
    with pytest.raises(InvalidInput):
        open_volume(place)
    compute(place, "0/3")
    with pytest.raises(RunFailed, match=r"are not computed yet, the first at "):
        finish(place)
    report = compute(place, "1/3")
    assert report.finished_before > 0
    compute(place, "2/3")
    found = finish(place, recheck="all")
    assert found.parts == 3
    assert found.checked == found.blocks
    assert difference(one, fetched(place)) == ""
    assert read_ledger(place).checksums == read_ledger(str(one)).checksums


@pytest.mark.slow
def test_the_command_line(place: str) -> None:
    for index in range(2):
        succeeds(*RUN, "--out", place, "--part", f"{index}/2")
    assert "is computed in parts; give" in refused(*RUN, "--out", place)
    assert "is computed in parts; give" in refused(*RUN, "--out", place, "--overwrite")
    assert "2 parts" in succeeds("finish", place)
    assert "is complete already" in refused("finish", place)
    assert "exists; delete it, or" in refused(*RUN, "--out", place, "--part", "0/2")
    assert znni("verify", place).code == 0


@pytest.mark.slow_cases
def test_a_folder_of_something_else(place: str) -> None:
    files, path = fsspec.core.url_to_fs(place)
    files.pipe_file(f"{path}/0/zarr.json", b"{}")
    assert "exists; delete it, or" in refused(*RUN, "--out", place, "--part", "0/2")
    files.pipe_file(f"{path}.partial", b"")  # as a single run leaves it
    said = refused(*RUN, "--out", place, "--part", "0/2")
    assert "is an unfinished output of something else" in said
    assert "no part of it was computed yet" in refused("finish", place)
    files.pipe_file(f"{path}.partial.ledger/session.json", b"{")
    assert "session.json: cannot be read" in refused(*RUN, "--out", place, "--part", "0/2")


@pytest.mark.slow
def test_parts_killed_at_any_request(s3: S3, at_s3: str) -> None:
    one = undisturbed()
    arguments = [sys.executable, str(SUPPORT / "killed_at_url.py"), *RUN[:1], *map(str, RUN[1:])]
    arguments += ["--out", at_s3, "--part", "0/1"]
    known = []
    for last in (2, 5, 9, 14):
        run = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        left = last

        def kill(method: str, _path: str, _count: int, pid: int = run.pid) -> str | None:
            nonlocal left
            left -= method == "PUT"
            if left:
                return None
            os.kill(pid, signal.SIGKILL)
            return "InternalError"

        s3.faults = kill
        assert run.wait() == -signal.SIGKILL
        s3.faults = never
        known.append(len(ledger(at_s3).blocks().finished))
    assert known == sorted(known)
    assert known[-1] > 2
    assert compute(at_s3, "0/1").finished_before > 0
    finish(at_s3, recheck="all")
    # The output names the command that began it, and the undisturbed one was begun without one.
    assert difference(one, fetched(at_s3), frozenset({"command"})) == ""


@pytest.mark.slow
def test_parts_that_begin_at_the_same_time(
    s3: S3, at_s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, errors = undisturbed(), []
    all_begin, agree = threading.Barrier(8, timeout=60), SharedLedger.agree

    def agree_together(ledger: SharedLedger, wanted: NewOutput, plan: str) -> Any:
        all_begin.wait()
        return agree(ledger, wanted, plan)

    monkeypatch.setattr(SharedLedger, "agree", agree_together)

    def run(part: str) -> None:
        try:
            compute(at_s3, part)
        except BaseException as error:  # pytest does not see those of threads
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f"{n % 4}/4",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(path.endswith("/session.json") for how, path in s3.requests if how == "PUT") > 1
    finish(at_s3)
    assert difference(one, fetched(at_s3)) == ""


def test_only_one_session_is_made(s3: S3, at_s3: str) -> None:
    wanted, agreed = NewOutput(2, Vec3(2, 2, 2), identity={"the input": "one"}), []
    begin = threading.Barrier(8)

    def agree(plan: str) -> None:
        begin.wait()
        agreed.append(ledger(at_s3).agree(wanted, plan).plan)

    s3.lost = lambda method, _, number: "InternalError" if method == "PUT" and number % 3 else None
    threads = [threading.Thread(target=agree, args=(f'"{n}"',)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(agreed) == 8
    assert len(set(agreed)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "lost"),
    [("SlowDown", False), ("InternalError", True)],
    ids=["refused", "answer lost"],
)
def test_failures_that_pass_are_not_seen(s3: S3, at_s3: str, fault: str, lost: bool) -> None:
    one = undisturbed()
    seen, failures = 0, 0

    def fails(method: str, _path: str, _number: int) -> str | None:
        nonlocal seen, failures
        if lost and method != "PUT":
            return None
        seen += 1
        if seen % 6:
            return None
        failures += 1
        return fault

    s3.lost, s3.faults = (fails, never) if lost else (never, fails)
    compute(at_s3, "0/2")
    compute(at_s3, "1/2")
    finish(at_s3, recheck="all")
    assert failures > 3
    s3.lost = s3.faults = never
    assert difference(one, fetched(at_s3)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [("SlowDown", "Please reduce your request rate"), ("AccessDenied", "Access Denied")],
)
def test_failures_that_stay_are_one_line(s3: S3, at_s3: str, fault: str, said: str) -> None:
    one = undisturbed()
    stop_part(at_s3, "0/1", 2)
    known = len(ledger(at_s3).blocks().finished)
    stored = 0

    def full(method: str, path: str, _count: int) -> str | None:
        nonlocal stored
        stored += method == "PUT" and "/0/c/" in path
        return fault if method == "PUT" and stored > 4 else None

    s3.faults = full
    told = refused(*RUN, "--out", at_s3, "--part", "0/1", code=4)
    assert f"{at_s3}: cannot be written: " in told
    assert said in told
    assert told.endswith("is not finished; the same command goes on from there")
    s3.faults = never
    assert len(ledger(at_s3).blocks().finished) >= known
    assert compute(at_s3, "0/1").finished_before > 0
    finish(at_s3)
    assert difference(one, fetched(at_s3)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["finish", "infer"])
def test_blocks_out_of_reach_are_not_taken_for_damaged(s3: S3, at_s3: str, command: str) -> None:
    compute(at_s3, "0/1")
    known = ledger(at_s3).blocks().written
    begun, bucket = False, at_s3.removeprefix("s3:/").removesuffix("out.zarr")

    def out_of_reach(method: str, path: str, _count: int) -> str | None:
        nonlocal begun
        begun = begun or (path.startswith(bucket) and "/0/c/" in path)
        return "AccessDenied" if method == "GET" and begun else None

    s3.faults = out_of_reach
    part = (*RUN, "--out", at_s3, "--part", "0/1")
    said = refused(*(part if command == "infer" else ("finish", at_s3)), code=4)
    assert "cannot be read: Access Denied; check the data and the network" in said
    s3.faults = never
    assert ledger(at_s3).blocks().written == known
    finish(at_s3, recheck="all")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b"", b"\x00" * 40, None], ids=["cut", "zeros", "deleted"])
def test_a_damaged_block_is_computed_again(place: str, damage: bytes | None) -> None:
    one = undisturbed()
    compute(place, "0/1")
    files, path = fsspec.core.url_to_fs(place)
    chunk = sorted(files.find(f"{path}/0/c"))[0]
    files.rm(chunk) if damage is None else files.pipe_file(chunk, damage)
    with pytest.raises(RunFailed, match=r"1 block not as written, the first at 0:"):
        finish(place, recheck="all")
    assert compute(place, "0/1").voxels > 0
    finish(place, recheck="all")
    assert difference(one, fetched(place)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_block_written_again_replaces_what_was_there(
    s3: S3, at_s3: str, compression: Any, sharded: bool
) -> None:
    size, patch = Vec3(4, 4, 4), Vec3(2, 4, 4)
    wanted = NewOutput(1, size, compression=compression, sharded=sharded, identity={"a": "b"})
    kept = writer_at(at_s3).join(wanted, lambda _: [Box(Vec3(0, 0, 0), size)])
    kept.note_plan("{}")
    kept.begin({}, patch)
    told: list[Any] = []
    sink = writer_at(at_s3).blocks(wanted, told.append)
    first, second = Box(Vec3(0, 0, 0), size).cut(patch)
    one = np.ones((1, *patch), np.float32)
    for box, values in ((first, one), (first, 0 * one), (second, 0 * one)):
        sink.write(box, values)
        assert (sink.read(box) == values).all()
    for entry in told:
        kept.note(entry)  # type: ignore[attr-defined]
    kept.finish({})
    writer_at(at_s3).gather("all", lambda *_: {})
    assert not open_volume(at_s3).read(Box(Vec3(0, 0, 0), size)).any()
    chunks = [path for how, path in s3.requests if how == "PUT" and "/0/c/" in path]
    assert len(chunks) == 2 * zarr.open_array(f"{at_s3}/0", mode="r").nchunks_initialized
    assert not [path for how, path in s3.requests if how == "DELETE" and "/0/" in path]


def test_sinks_of_outputs_that_are_not_there(place: str) -> None:
    wanted = NewOutput(1, Vec3(2, 2, 2))
    with pytest.raises(InvalidInput, match="there is no unfinished output"):
        writer_at(place).blocks(wanted, print)
    compute(place, "0/1")
    finish(place)
    with pytest.raises(InvalidInput, match="there is no unfinished output"):
        writer_at(place).blocks(wanted, print)


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there() -> None:
    with pytest.raises(InvalidInput, match="there is no unfinished output"):
        writer_at("s3://no-such-bucket/out.zarr").blocks(NewOutput(1, Vec3(2, 2, 2)), print)


def test_a_log_is_stored_now_and_then(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RemoteFiles(f"{place}.partial.ledger")
    log, now = files.log(), 0.0
    monkeypatch.setattr(remote_files, "monotonic", lambda: now)
    log.close()
    assert list(files.logs()) == []
    for _ in range(remote_files.MOST_ENTRIES + 1):
        log.append({"run": {}})
    assert [text.count(b"\n") for text in files.logs()] == [remote_files.MOST_ENTRIES]
    now = remote_files.MOST_SECONDS
    log.append({"run": {}})
    assert [text.count(b"\n") for text in files.logs()] == [remote_files.MOST_ENTRIES, 2]
    log.append({"run": {}})
    log.close()
    log.close()
    assert len(list(files.logs())) == 3


def test_entries_of_a_segment_that_failed_are_in_the_next_one(s3: S3, at_s3: str) -> None:
    kept = ledger(at_s3)
    for fails in ("faults", "lost"):
        kept.append({"run": {"in": fails}})
        setattr(s3, fails, lambda method, *_: "AccessDenied" if method == "PUT" else None)
        with pytest.raises(PermissionError):
            kept.close()
        setattr(s3, fails, never)
    kept.close()
    assert json.dumps(ledger(at_s3).blocks().runs).count("faults") == 2
    assert json.dumps(ledger(at_s3).blocks().runs).count("lost") == 2


def test_a_store_that_nobody_can_reach(at_s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compute(at_s3, "0/1")

    def fail(*_: Any, **__: Any) -> None:
        raise Unreachable("no way there")

    monkeypatch.setattr("znni.volumes.formats.zarr.shared_output._read", fail)
    assert refused("finish", at_s3, code=4) == "no way there"
