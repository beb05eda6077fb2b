"""Whatever is wrong: one line that says so, an exit code, and no output that looks whole."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import command_line
import h5py
import numpy as np
import pytest
from command_line import read_main, succeeds, voxels, write_case, znni
from fakes import fake_catalogue

from znni.volumes.partial_file import PartialFile

NOBODY = 65534  # the user that owns nothing
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good case, run by primitives that cost no time to plan for."""
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    return tmp_path


def refused(*arguments: object, code: int = 2) -> str:
    """The one line of a command that must fail, and must leave every whole file as it was."""
    before = contents()
    message = command_line.refused(*arguments, code=code)
    assert contents() == before
    return message


def contents() -> dict[Path, bytes]:
    files = (path for path in Path().iterdir() if path.is_file())
    return {path: path.read_bytes() for path in files if ".partial" not in path.name}


def rewrite(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def write_volume(values: object, name: str = "raw", **options: object) -> None:
    with h5py.File("volume.h5", "w") as file:
        file.create_dataset(name, data=values, **options)


def change_weights(**changes: np.ndarray | None) -> None:
    arrays = dict(np.load("tiny.npz")) | {k.replace("_", "."): v for k, v in changes.items()}
    np.savez("tiny.npz", **{name: a for name, a in arrays.items() if a is not None})


def several_datasets() -> None:
    with h5py.File("volume.h5", "a") as file:
        file["more/labels"] = np.zeros((3, 4, 5), np.int16)
        file["list"] = np.zeros(3)


def only_two_axes() -> None:
    write_volume(np.zeros((5, 6)))


def truncate(path: str, share: float) -> None:
    os.truncate(path, int(Path(path).stat().st_size * share))


VOLUMES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "missing": (lambda: Path("volume.h5").unlink(), ["volume.h5: no such file"]),
    "not HDF5": (lambda: Path("volume.h5").write_text("text"), ["cannot be read as HDF5"]),
    "empty file": (lambda: Path("volume.h5").write_text(""), ["cannot be read as HDF5"]),
    "cut short": (lambda: truncate("volume.h5", 0.5), ["cannot be read as HDF5", "truncated"]),
    "no dataset": (lambda: h5py.File("volume.h5", "w").close(), ["no dataset", "none at all"]),
    "several": (several_datasets, ["/raw (7, 20, 23) uint8", "dataset='/more/labels' (--dataset "]),
    "two axes": (only_two_axes, ["no dataset with axes (z, y, x)", "/raw (5, 6) float64"]),
    "five axes": (lambda: write_volume(np.zeros((1,) * 5)), ["no dataset with axes"]),
    "no voxels": (lambda: write_volume(np.zeros((5, 0, 5))), ["(5, 0, 5)", "no voxels"]),
    "complex": (lambda: write_volume(voxels(dtype="complex64")), ["complex64", "integers"]),
    "strings": (lambda: write_volume(np.full((3, 3, 3), "a", "S3")), ["holds |S3"]),
    "compound": (lambda: write_volume(np.zeros((3, 3, 3), "i4,f4")), ["integers or floats"]),
    "text": (
        lambda: write_volume(np.full((3, 3, 3), "a", object), dtype=h5py.string_dtype()),
        ["holds object"],
    ),
    "small": (lambda: write_volume(voxels((7, 4, 23))), ["7x4x23", "field of view 2x6x8", "same"]),
    "two maps": (lambda: write_volume(voxels((2, 7, 20, 23))), ["2 maps", "takes 1"]),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str) -> None:
    spoil, said = VOLUMES[name]
    spoil()
    message = refused(*INFER)
    for part in said:
        assert part in message


def test_a_volume_of_an_empty_dataspace() -> None:
    write_volume(h5py.Empty("f4"))
    assert "/raw None float32" in refused(*INFER)
    assert "()" in refused(*INFER, "--dataset", "raw")


@pytest.mark.parametrize(
    ("volume", "dataset", "said"),
    [
        ("volume.h5", "row", "no dataset 'row'; it has /raw (7, 20, 23) uint8"),
        ("volume.h5:/rat", None, "no dataset '/rat'"),
        ("volume.h5:/raw", "other", "give one"),
        ("volume.h5", "/", "no dataset"),
        (".", None, "is a folder"),
    ],
)
def test_datasets(volume: str, dataset: str | None, said: str) -> None:
    options = ("--dataset", dataset) if dataset else ()
    message = refused("infer", volume, "--net", "tiny.yaml", "--out", "out.h5", *options)
    assert said in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kernel: [2, 3, 3]", "kernal: [2, 3, 3]", "line 5: unknown key 'kernal'"),
        ("features: 3", "features: 4", "layer conv1: weight has shape (3, 1, 2, 3, 3)"),
        ("weights: tiny.npz", "", "--random-weights"),
        ("tiny.npz", "other.npz", "other.npz: no such weights file"),
    ],
)
def test_networks(old: str, new: str, said: str) -> None:
    rewrite("tiny.yaml", old, new)
    assert said in refused(*INFER)


def test_a_field_of_view_larger_than_the_volume() -> None:
    rewrite("tiny.yaml", "[2, 3, 3]", "[9, 3, 3]")
    rewrite("tiny.yaml", "weights: tiny.npz", "")
    message = refused(*INFER, "--random-weights", 1)
    assert "7x20x23 voxels, smaller than network tiny's field of view 9x6x8" in message


def test_weights() -> None:
    change_weights(conv1_bias=np.full(3, np.nan, np.float32))
    assert "layer conv1: bias has 3 values not finite" in refused(*INFER)
    change_weights(conv1_bias=None)
    assert "lacks 'conv1.bias'" in refused(*INFER)
    change_weights(conv1_bias=np.zeros(3), conv9_bias=np.zeros(3))
    assert "holds 'conv9.bias'" in refused(*INFER)
    Path("tiny.npz").write_bytes(b"")
    assert "tiny.npz: cannot be read" in refused(*INFER)
    assert "both" in refused(*INFER, "--random-weights", 1, "--weights", "tiny.npz")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--roi", "0:4"), "--roi 0:4 is not a region; write it as z0:z1,y0:y1,x0:x1"),
        (("--roi", "0:4,a:4,0:4"), "is not a region"),
        (("--roi", "0:4:2,0:4,0:4"), "is not a region"),
        (("--roi", "1:4,2:5,2:99"), "roi 1:4,2:5,2:99 is not within 0:6,2:17,3:19"),
        (("--roi", "-3:4,2:5,3:9"), "is not within"),
        (("--roi", "4:4,2:5,3:9"), "roi 4:4,2:5,3:9 is empty"),
        (("--roi", "4:2,2:5,3:9", "--border", "same"), "roi 4:2,2:5,3:9 is empty"),
        (("--ram", "lots"), "'lots' is not a size of memory; write it as 8GiB or 500MB"),
        (("--ram", "-1GiB"), "'-1GiB' is not a size"),
        (("--ram", "8GiB or so"), "'8GiB or so' is not a size"),
        (("--ram", "8,5GiB"), "'8,5GiB' is not a size"),
        (("--ram", "9" * 400 + "GiB"), "is not a size"),
        (("--ram", "0"), "0 bytes of RAM hold nothing"),
        (("--threads", "0"), "0 threads cannot compute; give at least 1"),
        (("--threads", "two"), "'--threads': 'two' is not an integer; see znni infer --help"),
        (("--dtype", "int8"), "'--dtype': 'int8' is not one of 'float32', "),
        (("--border", "none"), "--border"),
        (("--pad", "wrap"), "--pad"),
        (("--unknown",), "No such option: --unknown; see znni infer --help"),
        (("--random-weights", "-1"), "-1 is no seed"),
        (("--plan", "none.json"), "none.json: cannot be read: No such file or directory; check"),
        (("--net", "none.yaml"), "none.yaml: no such network file"),
    ],
)
def test_options(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*INFER, *options)


def test_commands_that_lack_something() -> None:
    assert "Commands" in succeeds()
    assert refused("nonesuch").endswith("; see znni --help")
    for command in ("infer", "plan", "info"):
        said = refused(command)
        assert said.startswith("Missing ")
        assert said.endswith(f"; see znni {command} --help")


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ("5,6", "has 2 extents; give three"),
        ("5", "has 1 extent; give three"),
        ("0,6,7", "(0, 6, 7)"),
        ("²,3,4", "no such file"),
        ("1e3,5,5", "no such file"),
        ("5,5,5", "field of view"),
        ("", "is a folder"),
    ],
)
def test_extents_to_plan_for(volume: str, said: str) -> None:
    assert said in refused("plan", "--net", "tiny.yaml", "--volume", volume)


def test_info() -> None:
    assert "no such file" in refused("info", "none.h5")
    assert "no such network file" in refused("info", "none.yaml")
    assert "cannot be read as HDF5" in refused("info", "tiny.npz")
    assert "no dataset 'rat'" in refused("info", "volume.h5:rat")


def test_an_output_that_exists() -> None:
    Path("out.h5").write_text("precious")
    assert "out.h5: exists; give overwrite=True (--overwrite) to" in refused(*INFER)
    assert Path("out.h5").read_text() == "precious"
    succeeds(*INFER, "--overwrite")
    assert read_main("out.h5").shape == (2, 6, 15, 16)
    assert not list(Path().glob("*.partial"))


def test_a_failure_leaves_the_output_that_it_should_replace() -> None:
    Path("out.h5").write_text("precious")
    write_volume(np.full((7, 20, 23), np.nan, np.float32))
    assert "out.h5 was not made" in refused(*INFER, "--overwrite")
    assert Path("out.h5").read_text() == "precious"
    assert not list(Path().glob("*.partial"))


def test_the_input_as_output(folder: Path) -> None:
    before = Path("volume.h5").read_bytes()
    Path("link.h5").symlink_to("volume.h5")
    Path("kept.h5.partial").write_bytes(before)
    for source, out in (
        ("volume.h5", "volume.h5"),
        ("volume.h5:/raw", folder / "volume.h5"),
        ("link.h5", "volume.h5"),
        ("volume.h5", "link.h5"),
    ):
        message = refused("infer", source, "--net", "tiny.yaml", "--out", out, "--overwrite")
        assert f"{out}: is the input" in message
    message = refused("infer", "kept.h5.partial", "--net", "tiny.yaml", "--out", "kept.h5")
    assert "kept.h5.partial: is the input" in message
    assert Path("volume.h5").read_bytes() == before
    assert Path("kept.h5.partial").read_bytes() == before


def test_places_that_cannot_be_written(folder: Path) -> None:
    infer = INFER[:-1]
    assert "there is no folder none" in refused(*infer, "none/out.h5")
    assert "there is no folder tiny.yaml" in refused(*infer, "tiny.yaml/out.h5")
    assert "cannot be written there: File name too long" in refused(*infer, "x" * 999 + ".h5")
    (folder / "taken.h5").mkdir()
    assert "taken.h5: is a folder" in refused(*infer, "taken.h5", "--overwrite")
    for name in ("out", "out.npy", "out.tif"):
        said = refused(*infer, name)
        assert said == (
            f"{name}: its ending names no format that znni writes; "
            f"let it end in one of .h5, .hdf5, .zarr"
        )
    plan = ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--out")
    assert "none/plan.json: cannot be written" in refused(*plan, "none/plan.json")


def test_a_plan_replaces_nothing_but_a_plan_and_that_only_if_asked() -> None:
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out")
    succeeds(*plan, "plan.json")
    assert "plan.json: exists; write elsewhere, or give overwrite=True (--overwrite)" in refused(
        *plan, "plan.json"
    )
    succeeds(*plan, "plan.json", "--overwrite")
    for other in ("tiny.yaml", "volume.h5"):
        before = Path(other).read_bytes()
        assert f"{other}: exists" in refused(*plan, other)
        assert f"{other}: not a plan" in refused(*plan, other, "--overwrite")
        assert Path(other).read_bytes() == before


def test_a_size_without_its_unit_is_of_bytes() -> None:
    assert "needs 512 MiB" in refused(*INFER, "--ram", "8", code=3)
    assert "and 8 B are allowed" in refused(*INFER, "--ram", "8", code=3)


def test_a_folder_is_no_volume(folder: Path) -> None:
    (folder / "volume").mkdir()
    message = refused("infer", "volume", *INFER[2:])
    assert "volume: is a folder; give a file, or a Zarr by a name that ends in .zarr" in message


def test_more_memory_than_there_is_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    succeeds(*INFER)
    assert not caplog.messages
    monkeypatch.setattr("znni.machine._available_memory", lambda: 300 << 20)
    succeeds(*INFER, "--ram", "2GiB", "--overwrite")
    assert caplog.messages == [
        "the plan takes 512 MiB and 270 MiB are available: the system may end the run; "
        "give ram='270MiB' (--ram 270MiB)"
    ]


def test_a_folder_without_permission(folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o555)
    folder.chmod(0o755)
    refused(*INFER, "--ram", "1", code=3)  # loads what needs to be loaded
    with without_privileges():
        message = refused(*INFER[:-1], "locked/out.h5")
    assert "locked/out.h5: cannot be written there: Permission denied" in message


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write anywhere: be somebody else for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_second_run_into_the_same_file() -> None:
    with PartialFile(Path("out.h5")):
        assert "out.h5.partial: is in use" in refused(*INFER)
        assert Path("out.h5.partial").exists()
    Path("out.h5.partial").unlink()


def test_a_disk_too_small_for_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 2**10

    monkeypatch.setattr("shutil.disk_usage", lambda _path: Usage)
    message = refused(*INFER)
    assert "the output takes 11 KiB and the disk has 1 KiB free" in message
    assert not list(Path().glob("*.partial"))


def test_memory_for_no_patch_and_the_least_that_will_do() -> None:
    message = refused(*INFER, "--ram", "1MB", code=3)
    found = re.search(r"--ram (\w+)", message)
    assert found, message
    assert "2 output voxels" in message
    assert not list(Path().glob("*.partial"))
    succeeds(*INFER, "--ram", found[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_voxel_that_is_no_number(value: float) -> None:
    values = voxels(dtype="float64")
    values[2, 3, 4] = value
    write_volume(values)
    message = refused(*INFER)
    assert "z=2, y=3, x=4" in message
    assert str(value) in message


def test_a_chunk_that_cannot_be_read() -> None:
    """The first block is written, the last chunk is damaged: what is finished is told."""
    write_volume(voxels((40, 20, 23)), chunks=(4, 20, 23), compression="gzip")
    with h5py.File("volume.h5") as file:
        chunk = file["raw"].id.get_chunk_info(9)
    with Path("volume.h5").open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\0" * chunk.size)
    message = refused(*INFER, "--ram", "512.4MiB", code=4)
    assert "volume.h5:/raw: cannot be read at " in message
    assert "out.h5 was not made; out.h5.partial holds" in message
    blocks = int(re.findall(r"(\d+) finished blocks?", message)[0])
    assert blocks >= 1
    partial = read_main("out.h5.partial")
    assert partial[:, 0].all()
    assert not partial[:, -1].any()


def test_a_bug_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_machine: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("znni.planning.catalogue", broken)
    assert "ZeroDivisionError: oh; a bug: add --debug" in refused(*INFER, code=70)
    outcome = znni(*INFER, "--debug")
    assert outcome.code == 70
    assert "Traceback" in outcome.err
    assert "in broken" in outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_before_the_first_block(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def stopped(_machine: object) -> None:
        signal.raise_signal(number)
        time.sleep(10)  # Python may take its time to call the handler

    monkeypatch.setattr("znni.planning.catalogue", stopped)
    message = refused(*INFER, code=128 + number)
    assert message == f"stopped by {number.name}; out.h5 was not made"
    assert not Path("out.h5.partial").exists()
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(_machine: object) -> None:
        raise MemoryError("Unable to allocate 9 PiB")

    monkeypatch.setattr("znni.planning.catalogue", greedy)
    assert "memory ran out: Unable to allocate 9 PiB" in refused(*INFER, code=1)
