"""Tests of the public library: its names, plans, and inference into files and arrays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import VOLUME, read_main, voxels
from tiny_network import close, whole

import znni
import znni.inference.inferer
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Box, Vec3
from znni.engine.report import Report
from znni.network.network import Network
from znni.network.weights import ConvWeights, Weights
from znni.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def test_names() -> None:
    assert set(znni.__all__) <= set(dir(znni)) | set(znni.__all__)
    for name in znni.__all__:
        assert getattr(znni, name).__doc__
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = znni.nonesuch


def test_infer_into_a_file_or_an_array(network: Network, weights: Weights) -> None:
    done: list[tuple[int, int]] = []
    report = znni.infer(
        "volume.h5", "tiny.yaml", "out.h5", progress=lambda *shares: done.append(shares)
    )
    assert isinstance(report, Report)
    assert done[-1] == (1440, 1440)
    assert report.attributes["weights_sha256"] == weights.sha256
    assert 0 < report.attributes["seconds"] < report.seconds, "without those after the output"
    assert "1,440 voxels in" in str(report)
    with h5py.File("volume.h5") as file:
        out = np.zeros((2, 6, 15, 16))
        znni.infer(file["raw"], network, out, weights="tiny.npz")
    np.testing.assert_array_equal(out.astype(np.float32), read_main("out.h5"))
    assert close(out, whole())


def test_infer_into_what_does_not_fit(network: Network) -> None:
    volume = voxels()
    for out, said in (
        (np.zeros((1, 6, 15, 16), np.float32), r"it needs \(2, 6, 15, 16\)"),
        (np.zeros((2, 6, 15, 16), np.int32), "holds int32"),
        ([], "a list"),
    ):
        with pytest.raises(InvalidInput, match=said):
            znni.infer(volume, network, out)
    shared = np.zeros((2, *VOLUME), np.float32)
    with pytest.raises(InvalidInput, match="shares memory with the input"):
        znni.infer(shared[0], network, shared, border="same")


def test_an_error_says_what_is_left(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr")
    monkeypatch.setattr(
        "znni.volumes.partial_output.HELD_BYTES", 0
    )  # as larger outputs are written

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        znni.infer("volume.h5", network, "out.zarr", progress=stop)
    left = "out.zarr was not made; out.zarr.partial/0 holds 1 finished block"
    assert stopped.value.__notes__ == [f"{left}; the same command goes on from there"]
    assert not Path("out.zarr").exists()
    with pytest.raises(KeyboardInterrupt) as stopped:
        znni.infer(voxels(), network, np.empty((2, 6, 15, 16), np.float32), progress=stop)
    assert stopped.value.__notes__ == ["the output array is incomplete"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((7, 20, 23)), r"give this array\'s, \(7, 20, 23\)"),
        ("volume.h5", r"'volume.h5' is no shape of a volume; give z, y and x as integers"),
        (512, r"'512' is no shape of a volume"),
    ],
)
def test_what_is_no_shape(given: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        znni.plan("tiny.yaml", given)


@pytest.mark.parametrize("shape", [(7, 20, 23.5), (7, 20), (0, 20, 23), ("7", 20, 23)])
def test_extents_are_integers(shape: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be planned for; give z, y and x as integers"):
        znni.plan("tiny.yaml", shape)
    assert znni.plan("tiny.yaml", np.array(VOLUME)).output == (6, 15, 16)


@pytest.mark.parametrize("roi", [np.s_[1.5:3, :, :], np.s_[:, :, ::2], np.s_[:, 3, :], np.s_[:, :]])
def test_regions_are_of_whole_voxels(roi: Any) -> None:
    with pytest.raises(InvalidInput, match="give three slices"):
        znni.plan("tiny.yaml", VOLUME, roi=roi)


def test_threads_that_no_core_is_for(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    out = np.empty((2, 6, 15, 16), np.float32)
    znni.infer(voxels(), network, out, threads=1)
    assert not caplog.records
    znni.infer(voxels(), network, out, threads=999)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"the plan has 999 threads, and .* more are no faster; give .*", warning)


def test_more_memory_is_advised_if_it_would_save_nearly_all_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def advised(memory: int) -> list[str]:
        caplog.clear()
        out = np.empty((1, 85, 85, 85), np.float32)
        znni.dry_run(np.empty((100,) * 3, np.uint8), "boundaries", out, ram=memory, device="cpu")
        return [record.getMessage() for record in caplog.records]

    roomy = znni.search("boundaries", (100,) * 3, ram="8GiB", device="cpu")
    least = roomy.smallest().memory.total
    (warning,) = advised(least + 2**22)
    found = re.search(r"% of the work is repeated; .*--ram (\d+)MiB\) the run is about", warning)
    assert found
    assert least < int(found[1]) * 2**20 < 2 * least
    assert not advised(int(found[1]) * 2**20)


def test_plan(network: Network) -> None:
    plan = znni.plan("tiny.yaml", VOLUME)
    assert isinstance(plan, Plan)
    assert plan.network == network
    assert plan.output == (6, 15, 16)
    assert znni.plan(network, VOLUME, border="same").output == VOLUME
    region = Box(Vec3(1, 2, 3), Vec3(2, 4, 6))
    assert znni.plan(network, np.array(VOLUME), roi=region).output == (1, 2, 3)  # type: ignore[arg-type]
    least = znni.plan(network, VOLUME, dtype="uint8", input_dtype="uint8")
    assert least == znni.plan(network, VOLUME, dtype="uint8", input_itemsize=1)
    assert least.memory.blocks != plan.memory.blocks
    with pytest.raises(DoesNotFit) as caught:
        znni.plan(network, VOLUME, ram=1024)
    assert caught.value.sensible >= caught.value.needed > caught.value.allowed == 1024


def test_a_plan_in_a_file_is_run(network: Network) -> None:
    plan = znni.plan(network, VOLUME, roi=np.s_[:2, :4, :6])
    Path("plan.json").write_text(plan.to_json())
    report = znni.infer("volume.h5", network, "out.h5", plan="plan.json")
    assert report.plan.patch == plan.patch != znni.plan(network, VOLUME).patch
    with pytest.raises(InvalidInput, match=r"none.json: cannot be read"):
        znni.infer("volume.h5", network, "other.h5", plan="none.json")
    for shape in ((5, 6), (1, 2, 3, 4), (0, 9, 9), (-9, 9, 9), (1, 1, 1)):
        with pytest.raises(InvalidInput):
            znni.plan(network, shape)


@pytest.mark.slow
def test_the_library_is_quiet_and_random_weights_are_repeatable(network: Network) -> None:
    code = """
import numpy as np, znni
network = znni.load_network("tiny.yaml")
out = np.empty((2, 6, 15, 16), np.float32)
znni.infer("volume.h5", network, out, random_seed=3)
again = znni.Inferer(network, znni.random_weights(network, 3))(
    np.random.default_rng(1).integers(0, 200, (7, 20, 23)).astype("uint8"))
assert (out == again).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert network.name == "tiny"


def test_weights_that_a_program_made_are_checked(network: Network, weights: Weights) -> None:
    first = weights["conv1"]
    narrow = ConvWeights(first.weight[..., :2], first.bias)
    wrong = Weights({**weights.layers, "conv1": narrow}, "mine")
    said = r"mine: layer conv1: weight has shape .*, 3, 2\); the network needs .*, 3, 3\)"
    with pytest.raises(InvalidInput, match=said):
        znni.Inferer(network, wrong)
    with pytest.raises(InvalidInput, match=said):
        znni.infer(voxels(), network, "out.h5", weights=wrong)
    with pytest.raises(InvalidInput, match=r"both random weights and the weights .*tiny\.npz"):
        znni.infer(voxels(), network, "out.h5", weights=weights, random_seed=1)
    assert not Path("out.h5").exists()


def test_misspelt_choices_are_refused(network: Network, weights: Weights) -> None:
    with pytest.raises(
        InvalidInput, match="accuracy is 'half'; choose one of float32, tf32, bfloat16"
    ):
        znni.Inferer(network, weights, accuracy="half")  # type: ignore[arg-type]
    for wrong in (
        {"border": "sme"},
        {"pad": "refelct"},
        {"dtype": "uint9"},
        {"accuracy": "half"},
        {"ram": "lots"},
    ):
        (value,) = wrong.values()
        with pytest.raises(InvalidInput, match=re.escape(value)):
            znni.infer(voxels(), network, "out.h5", weights=weights, **wrong)  # type: ignore[arg-type]
        assert not Path("out.h5").exists()
    with pytest.raises(InvalidInput, match="border is 'sme'"):
        znni.plan(network, VOLUME, border="sme")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="give three slices"):
        znni.plan(network, VOLUME, roi="1:2,3:4,5:6")  # type: ignore[arg-type]


def test_a_region_as_slices_is_a_crop_of_the_whole(network: Network, weights: Weights) -> None:
    whole = znni.Inferer(network, weights, border="same")(voxels())
    region = np.s_[1:4, :, 5:]
    size = znni.plan(network, VOLUME, roi=region, border="same").output
    out = np.empty((2, *size), np.float32)
    znni.infer(voxels(), network, out, weights=weights, roi=region, border="same", ram="4GiB")
    np.testing.assert_allclose(out, whole[:, *region], atol=1e-5)


def test_uint8_of_an_unbounded_output_warns(
    network: Network, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    out = np.empty((2, 6, 15, 16), np.uint8)
    bounded = network.convolutions[-1].activation in ("sigmoid", "softmax")
    znni.infer(voxels(), network, out, weights=weights, dtype="uint8")
    assert ("clipped" in caplog.text) == (not bounded)
