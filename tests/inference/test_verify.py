"""Tests that verification compares outputs with values from input and network alone."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import NET, VOLUME, read_main, refused, succeeds, voxels, write_volume

import znni
from znni.core.errors import InvalidInput, OutputDiffers
from znni.core.shapes import Box, Vec3
from znni.engine.tiles import for_job, make_job
from znni.inference.brute_force import multiplications_at
from znni.inference.provenance import Attributes, origin_attributes
from znni.inference.request import open_request, request_for
from znni.inference.verify import compared, seconds_for
from znni.machine.detect import detect_host
from znni.volumes.block_checks import check_blocks
from znni.volumes.formats.hdf5.new_file import LEDGER
from znni.volumes.ledger_entries import Ledger
from znni.volumes.locate import open_volume, read_ledger

INFER = ("infer", "volume.h5", "--net", "tiny.yaml")


pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--dtype", "uint8"),
        ("--dtype", "float16"),
        ("--roi", "1:5,4:10,6:9"),
        ("--border", "same"),
        ("--border", "same", "--pad", "edge"),
        ("--border", "same", "--pad", "constant", "--roi", "0:2,:,:3"),
        ("--dataset", "raw", "--threads", "1"),
    ],
)
@pytest.mark.parametrize("ending", ["h5", "zarr"])
def test_what_was_computed_agrees(options: tuple[str, ...], ending: str) -> None:
    if ending == "zarr":
        pytest.importorskip("zarr")
    out = f"out.{ending}"
    succeeds(*INFER, "--out", out, *options)
    said = succeeds("verify", out, "--voxels", 40, "--seed", 3)
    assert f"{out}: agree; 40 voxels computed again in float64 (seed 3), largest error " in said
    found = znni.verify(out, voxels=40, seed=3)
    assert found.agrees
    assert str(found) == said.rstrip()
    assert 0 < found.allowed < 2.1e-3
    assert found.largest_error <= found.allowed


@pytest.mark.parametrize("options", [{}, {"labels": True}, {"threshold": 0.5}, {"channel": 0}])
def test_an_output_records_what_is_read_back(options: Any) -> None:
    asked = open_request(request_for("volume.h5", "tiny.yaml", "out.h5", **options))
    weights = znni.random_weights(asked.network, 0)
    recorded = origin_attributes(asked, asked.network, weights, "float32")
    assert list(recorded) == list(Attributes.model_fields)
    again = Attributes.model_validate(recorded).model_dump()
    assert again == recorded
    assert list(map(type, again.values())) == list(map(type, recorded.values()))


def test_a_long_verification_says_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path("net.yaml").write_text(
        "name: net\nlayers: [{conv: {features: 2, kernel: 3, activation: relu}}, "
        "{pool: {window: 2}}, {conv: {features: 3, kernel: 2, activation: relu}}]"
    )
    network = znni.load_network("net.yaml")
    count = 4**3 * 3**3 * 2 + 2**3 * 2 * 3  # the first layer makes 4^3 voxels, the last one
    somewhere = [Vec3(9, 9, 9)] * 3
    assert multiplications_at(network, somewhere) == 3 * count
    slow = replace(detect_host().host, flops=8e9, threads=2)
    assert seconds_for(network, somewhere, slow) == pytest.approx(3 * 2 * count / 2e8)
    succeeds(*INFER, "--out", "out.h5")
    znni.verify("out.h5", voxels=4)
    assert not caplog.messages
    monkeypatch.setattr("znni.inference.verify.LONG_SECONDS", 1e-9)
    znni.verify("out.h5", voxels=4)
    (said,) = caplog.messages
    assert said == "4 voxels take about 0.0 s; give voxels=1 (--voxels 1) for fewer"
    caplog.clear()
    znni.verify("out.h5", voxels=1)
    assert caplog.messages == ["1 voxel takes about 0.0 s"]


UNET = """
name: net
layers:
  - {name: a, conv: {features: 2, kernel: 3, padding: 1, activation: relu}}
  - {pool: {window: 2}}
  - {conv: {features: 4, kernel: 3, padding: 1, activation: relu}}
  - {name: up, conv_transpose: {features: 2, kernel: 2, stride: 2, activation: relu}}
  - {from: [up, a], concat: {}}
  - {conv: {features: 3, kernel: 1, activation: sigmoid}}
"""


def test_the_work_of_a_tiled_network_is_counted() -> None:
    Path("net.yaml").write_text(UNET)
    network = znni.load_network("net.yaml")
    job = make_job(network, Vec3(20, 20, 20), "valid", "reflect", None)
    pooled = 1  # the voxel needs one sample of the lower level, which needs 3^3 before it
    seen = (3 * 2) ** 3  # samples of the first layer that are pooled, with the voxel among them
    count = seen * 27 * 2 + pooled * 27 * 2 * 4 + pooled * 8 * 4 * 2 + 4 * 3
    assert multiplications_at(for_job(network, job), [Vec3(10, 10, 10)]) == count


def test_the_work_of_windows_is_counted() -> None:
    Path("net.yaml").write_text(
        "name: net\nwindow: {size: [8, 8, 8], overlap: 0.5, mirror: zx}\n"
        "layers: [{conv: {features: 2, kernel: 3, padding: 1, activation: relu}}]"
    )
    network = znni.load_network("net.yaml")
    assert network.window
    volume = Vec3(16, 12, 8)  # 3 x 2 x 1 windows
    over = replace(network, window=network.window.over(volume))
    of_window = 4 * 8**3 * 27 * 2
    corner, middle = Vec3(0, 0, 0), Vec3(5, 5, 0)  # of the windows from 0 and from 4 along z and y
    assert multiplications_at(over, [corner]) == of_window
    assert multiplications_at(over, [corner, middle, middle + 1]) == 4 * of_window
    assert multiplications_at(over, [middle, corner, middle]) == 4 * of_window


def test_padding_that_is_wider_than_the_volume() -> None:
    write_volume(voxels((1, 3, 2)))
    for pad in ("reflect", "edge", "constant"):
        succeeds(*INFER, "--out", "out.h5", "--border", "same", "--pad", pad, "--overwrite")
        assert znni.verify("out.h5", voxels=30, seed=0).agrees


def change(at: tuple[int, ...], by: float, name: str = "out.h5") -> None:
    with h5py.File(name, "r+") as file:
        main = file["main"]
        main[at] = main[at] + by


@pytest.mark.parametrize(
    ("dtype", "unseen", "seen"),
    [("float32", 2e-5, 1e-4), ("float16", 2e-5, 1e-3), ("uint8", 0, 1)],
)
def test_values_that_differ_are_found(dtype: str, unseen: float, seen: float) -> None:
    succeeds(*INFER, "--out", "out.h5", "--dtype", dtype, "--roi", "2:3,5:7,8:9")
    change((1, 0, 1, 0), unseen)
    assert znni.verify("out.h5", voxels=20, blocks=0, seed=1).agrees
    assert bool(znni.verify("out.h5", voxels=20, seed=1).blocks.damaged) == (dtype == "float32")
    change((1, 0, 1, 0), seen)
    found = znni.verify("out.h5", voxels=20, seed=1)
    assert found.blocks.damaged == (Box(Vec3(0, 0, 0), Vec3(1, 2, 1)),)
    assert 0 < found.wrong < 20
    assert found.at == (0, 1, 0)
    assert found.largest_error > found.allowed
    message = refused("verify", "out.h5", "--seed", 1, code=OutputDiffers.exit_code)
    assert "voxels differ; 32 voxels computed again" in message
    assert "at z=0, y=1, x=0 of the output, where " in message


def test_a_value_that_is_not_a_number_differs() -> None:
    succeeds(*INFER, "--out", "out.h5", "--roi", "2:3,5:6,8:9")
    change((0, 0, 0, 0), np.nan)
    assert znni.verify("out.h5", voxels=3, seed=1).wrong == 3


def test_other_input_differs() -> None:
    succeeds(*INFER, "--out", "out.h5")
    with h5py.File("volume.h5", "r+") as file:
        file["raw"][...] = voxels()[::-1]
    message = refused("verify", "out.h5")
    assert re.match(
        r"out.h5:/main was computed from another input, or this one has changed since: the input's "
        r"(values|bytes) \(then: [0-9a-f]{16}; now: [0-9a-f]{16}\); give that one",
        message,
    )


def test_blocks_are_held_to_their_checksums() -> None:
    plan = znni.plan("tiny.yaml", (3, 9, 10), threads=1)
    znni.infer("volume.h5", "tiny.yaml", "out.h5", plan=plan)
    whole = znni.verify("out.h5", voxels=1)
    blocks = len(read_ledger("out.h5").checksums)
    assert (whole.blocks.blocks, whole.blocks.checked) == (blocks, blocks)
    assert blocks > 8
    assert f"; {blocks} blocks have their checksums" in succeeds("verify", "out.h5", "--voxels", 1)
    assert f"; 5 blocks of {blocks} have" in succeeds("verify", "out.h5", "--blocks", 5)
    assert f"; 1 block of {blocks} has its" in succeeds("verify", "out.h5", "--blocks", 1)
    said = succeeds("verify", "out.h5", "--blocks", 0)
    assert said.startswith("out.h5: the voxels looked at agree; 32 voxels computed again")
    assert f"; none of {blocks} blocks read, so that other voxels may differ" in said
    change((0, 5, 14, 15), 1e-7)
    message = refused("verify", "out.h5", code=5)
    assert "; 1 block damaged, the first one at " in message
    agree = [znni.verify("out.h5", voxels=1, blocks=9, seed=seed).agrees for seed in range(9)]
    assert {True, False} == set(agree)


def nobody(_done: int, _total: int) -> None:
    """Ignore the progress."""


def test_ledgers_of_other_outputs() -> None:
    succeeds(*INFER, "--out", "out.h5")
    part = Ledger(checksums={Box(Vec3(0, 0, 0), Vec3(1, 2, 3)): "0"})
    with pytest.raises(InvalidInput, match="out: its ledger has blocks of 6 voxels and it holds 1"):
        check_blocks(open_volume("out.h5"), part, "out", None, np.random.default_rng(), nobody)
    with h5py.File("out.h5", "r+") as file:
        del file[LEDGER]
    said = refused("verify", "out.h5")
    assert "has no ledger of its blocks" in said
    assert "have one, except .npy files: compute it again" in said


@pytest.mark.parametrize(
    ("stored", "computed", "error"),
    [
        (np.float16(np.inf), 1e6, 0.0),
        (np.float16(np.inf), 65519.0, 0.0),
        (np.float16(np.inf), -1e6, np.inf),
        (np.float16(np.inf), 3.0, np.inf),
        (np.uint8(255), 1.5, 0.0),
        (np.uint8(0), -3.0, 0.0),
        (np.float32(1.5), 1.0, 0.5),
    ],
)
def test_errors_are_of_what_the_type_can_hold(stored: Any, computed: float, error: float) -> None:
    scale = 1 / 255 if stored.dtype == np.uint8 else 1.0
    found, _ = compared(np.array([stored]), np.array([computed]), scale, 1e-4)
    assert found[0] == error


def test_random_weights_are_drawn_again() -> None:
    Path("tiny.yaml").write_text(NET.replace("weights: tiny.npz\n", ""))
    succeeds(*INFER, "--out", "out.h5", "--random-weights", 7)
    assert znni.verify("out.h5", voxels=5).agrees


def test_input_and_weights_may_lie_elsewhere() -> None:
    succeeds(*INFER, "--out", "out.h5")
    Path("volume.h5").rename("moved.h5")
    message = refused("verify", "out.h5")
    assert "no such file" in message
    assert "computed from volume.h5: if that lies elsewhere" in message
    assert "--source FILE" in message
    Path("tiny.npz").rename("moved.npz")
    assert "if they lie elsewhere" in refused("verify", "out.h5", "--source", "moved.h5")
    succeeds("verify", "out.h5", "--source", "moved.h5:/raw", "--weights", "moved.npz")


def test_a_copy_of_the_input_will_do() -> None:
    succeeds(*INFER, "--out", "out.h5")
    os.utime("volume.h5", (1, 1))
    assert znni.verify("out.h5", voxels=2).agrees
    assert znni.verify("out.h5", voxels=2, source=voxels()).agrees


def test_an_array_is_given_again() -> None:
    values = voxels()
    znni.infer(values, "tiny.yaml", "out.h5")
    with pytest.raises(InvalidInput, match="from an array in memory, of type ndarray; give it"):
        znni.verify("out.h5")
    assert znni.verify("out.h5", source=values).agrees
    assert "from an array in memory, of type ndarray; " in refused("verify", "out.h5")
    np.save("values.npy", values)
    succeeds("verify", "out.h5", "--source", "values.npy")


def test_a_mask_in_memory_is_given_again() -> None:
    mask = np.ones(VOLUME, bool)
    znni.infer("volume.h5", "tiny.yaml", "out.h5", mask=mask)
    with pytest.raises(InvalidInput, match="with a mask in memory, of type ndarray; give it"):
        znni.verify("out.h5")
    assert znni.verify("out.h5", mask=mask).agrees


def test_a_file_by_the_name_of_a_type_is_a_file() -> None:
    Path("volume.h5").rename("ndarray")
    znni.infer("ndarray", "tiny.yaml", "out.h5")
    assert znni.verify("out.h5").agrees
    Path("ndarray").unlink()
    assert "ndarray: no such file" in refused("verify", "out.h5")


def test_other_weights_are_refused() -> None:
    succeeds(*INFER, "--out", "out.h5")
    arrays = dict(np.load("tiny.npz"))
    arrays["conv1.bias"] = arrays["conv1.bias"] + 1
    np.savez("tiny.npz", **arrays)
    message = refused("verify", "out.h5")
    assert "other weights than those of tiny.npz: their SHA-256 is " in message


def test_another_input_is_refused() -> None:
    succeeds(*INFER, "--out", "out.h5")
    write_volume(voxels((7, 20, 24)))
    message = refused("verify", "out.h5")
    assert (
        "the input is 7x20x24 voxels, and out.h5:/main was computed from one of 7x20x23" in message
    )


def test_what_no_run_has_made_is_refused() -> None:
    with h5py.File("other.h5", "w") as file:
        file["main"] = read = np.zeros((1, 4, 5, 6), np.float32)
    assert read.any() == 0
    message = refused("verify", "other.h5")
    assert message == (
        "other.h5:/main: has no attribute 'source', so it is unknown how it was computed; "
        "give an output of znni infer"
    )
    assert "no such file" in refused("verify", "absent.h5")
    np.save("a.npy", read)
    assert "attribute 'source'" in refused("verify", "a.npy")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("network_file", "{", "attribute network_file, line 1: not valid YAML"),
        ("network_file", 3, "attribute 'network_file' is 3, which no run has written"),
        ("voxel_offset", [1, 2], "attribute 'voxel_offset' is [1, 2], which no run"),
        ("voxel_offset", [90, 2, 3], "from voxel 90x2x3 of a volume of 7x20x23"),
        ("pad", "mirror", "attribute 'pad' is 'mirror', which"),
        ("scale", h5py.Empty("f8"), "attribute 'scale' is Empty(dtype="),
    ],
)
def test_damaged_attributes_are_refused(name: str, value: Any, said: str) -> None:
    succeeds(*INFER, "--out", "out.h5")
    with h5py.File("out.h5", "r+") as file:
        del file["main"].attrs[name]
        file["main"].attrs[name] = value
    assert said in refused("verify", "out.h5")


def test_other_voxels_each_time() -> None:
    succeeds(*INFER, "--out", "out.h5")
    assert len({znni.verify("out.h5", voxels=1).seed for _ in range(5)}) > 1
    assert read_main("out.h5").shape == (2, 6, 15, 16)
    with pytest.raises(InvalidInput, match="0 voxels"):
        znni.verify("out.h5", voxels=0)
