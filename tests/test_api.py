"""The library: plan, infer into an array, and an inferer that is called again and again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import VOLUME, read_main, voxels, write_case
from fakes import Fake, fake_catalogue
from numpy.typing import NDArray

import znni
import znni.inferer
from znni.errors import DoesNotFit, InvalidInput
from znni.network import Network
from znni.plans import Plan
from znni.primitive import convolved
from znni.primitives.reference import dense
from znni.report import Report
from znni.shapes import Box, Vec3
from znni.weights import ConvWeights, Weights


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    if "real" not in request.node.name:
        monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    return tmp_path


@pytest.fixture
def network() -> Network:
    return znni.load_network("tiny.yaml")


@pytest.fixture
def weights(network: Network) -> Weights:
    return znni.load_weights("tiny.npz", network)


def expected(network: Network, weights: Weights, volume: NDArray[Any]) -> NDArray[Any]:
    scaled = volume.reshape(-1, *volume.shape[-3:]) * network.scaling.scale
    return dense(network, weights, scaled + network.scaling.offset)


def test_names() -> None:
    assert set(znni.__all__) <= set(dir(znni)) | set(znni.__all__)
    for name in znni.__all__:
        assert getattr(znni, name).__doc__
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = znni.nonesuch


def test_real_inferer_and_infer_agree(network: Network, weights: Weights) -> None:
    volume = voxels()
    out = np.empty((2, 6, 15, 16), np.float32)
    report = znni.infer(volume, network, out, weights=weights, threads=2)
    inferer = znni.Inferer(network, weights, threads=2)
    np.testing.assert_array_equal(inferer(volume), out)
    np.testing.assert_allclose(out, expected(network, weights, volume), atol=1e-5)
    assert report.voxels == 6 * 15 * 16


def test_infer_into_a_file_or_an_array(network: Network, weights: Weights) -> None:
    done: list[tuple[int, int]] = []
    report = znni.infer(
        "volume.h5", "tiny.yaml", "out.h5", progress=lambda *shares: done.append(shares)
    )
    assert isinstance(report, Report)
    assert done[-1] == (1440, 1440)
    assert report.attributes["weights_sha256"] == weights.sha256
    assert report.attributes["seconds"] == report.seconds > 0
    assert "1,440 voxels in" in str(report)
    with h5py.File("volume.h5") as file:
        out = np.zeros((2, 6, 15, 16))
        znni.infer(file["raw"], network, out, weights="tiny.npz")
    np.testing.assert_array_equal(out.astype(np.float32), read_main("out.h5"))
    np.testing.assert_allclose(out, expected(network, weights, voxels()), atol=1e-5)


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


def test_an_error_says_what_is_left(network: Network) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        znni.infer("volume.h5", network, "out.h5", progress=stop)
    left = "out.h5 was not made; out.h5.partial holds 1 finished block"
    assert stopped.value.__notes__ == [f"{left}; the same command goes on from there"]
    assert not Path("out.h5").exists()
    with pytest.raises(KeyboardInterrupt) as stopped:
        znni.infer(voxels(), network, np.empty((2, 6, 15, 16), np.float32), progress=stop)
    assert stopped.value.__notes__ == ["the output array is incomplete"]


@pytest.mark.parametrize("shape", [(7, 20, 23.5), (7, 20), (0, 20, 23), ("7", 20, 23)])
def test_extents_are_integers(shape: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be planned for; give z, y and x as integers"):
        znni.plan("tiny.yaml", shape)
    assert znni.plan("tiny.yaml", np.array(VOLUME)).output == (6, 15, 16)


@pytest.mark.parametrize("roi", [np.s_[1.5:3, :, :], np.s_[:, :, ::2], np.s_[:, 3, :], np.s_[:, :]])
def test_regions_are_of_whole_voxels(roi: Any) -> None:
    with pytest.raises(InvalidInput, match="give three slices"):
        znni.plan("tiny.yaml", VOLUME, roi=roi)


def test_padding_needs_a_border(network: Network) -> None:
    with pytest.raises(InvalidInput, match=r"pad is 'edge', and border='valid' sees nothing bey.*"):
        znni.Inferer(network, pad="edge")(voxels())


def test_threads_that_no_core_is_for(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    out = np.empty((2, 6, 15, 16), np.float32)
    znni.infer(voxels(), network, out, threads=1)
    assert not caplog.records
    znni.infer(voxels(), network, out, threads=999)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"the plan has 999 threads, and .* more are no faster; give .*", warning)


def test_plan(network: Network) -> None:
    plan = znni.plan("tiny.yaml", VOLUME)
    assert isinstance(plan, Plan)
    assert plan.network == network
    assert plan.output == (6, 15, 16)
    assert znni.plan(network, VOLUME, border="same").output == VOLUME
    region = Box(Vec3(1, 2, 3), Vec3(2, 4, 6))
    assert znni.plan(network, np.array(VOLUME), roi=region).output == (1, 2, 3)  # type: ignore[arg-type]
    least = znni.plan(network, VOLUME, dtype="uint8", input_itemsize=1)
    assert least.memory.blocks != plan.memory.blocks
    with pytest.raises(DoesNotFit):
        znni.plan(network, VOLUME, ram=1)
    for shape in ((5, 6), (1, 2, 3, 4), (0, 9, 9), (-9, 9, 9), (1, 1, 1)):
        with pytest.raises(InvalidInput):
            znni.plan(network, shape)


def test_an_inferer_takes_arrays_of_any_kind_and_size(network: Network, weights: Weights) -> None:
    inferer = znni.Inferer("tiny.yaml")
    for shape, dtype in (
        (VOLUME, "uint8"),
        (VOLUME, ">f4"),
        ((1, *VOLUME), "float64"),
        ((2, 6, 8), "int16"),
        ((9, 9, 30), "bool"),
        (VOLUME, "uint8"),
    ):
        volume = voxels(shape, dtype)
        before = volume.copy()
        found = inferer(volume)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected(network, weights, volume), atol=1e-5)
        np.testing.assert_array_equal(volume, before)
    with h5py.File("volume.h5") as file:
        np.testing.assert_array_equal(inferer(file["raw"]), inferer(voxels()))
    turned = np.asfortranarray(voxels())[::-1, :, ::-1]
    np.testing.assert_allclose(inferer(turned), expected(network, weights, turned), atol=1e-5)


def test_an_inferer_prepares_a_size_once(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    planned: list[Any] = []
    original = znni.planning.fastest
    monkeypatch.setattr(znni.planning, "fastest", lambda *a: planned.append(a) or original(*a))
    inferer = znni.Inferer(network, weights)
    inferer(voxels())
    inferer(voxels())
    assert len(planned) == 1
    inferer(voxels((9, 20, 23)))
    assert len(planned) == 2
    inferer(voxels((9, 20, 23), "float64"))  # blocks of it take more memory
    assert len(planned) == 3


def test_an_inferer_counts_its_output(network: Network, weights: Weights) -> None:
    output = 4 * 2 * 6 * 15 * 16
    with pytest.raises(DoesNotFit) as alone:
        znni.plan(network, VOLUME, ram=1, input_itemsize=1)
    with pytest.raises(DoesNotFit) as refused:
        znni.Inferer(network, weights, ram=1)(voxels())
    needed = refused.value.needed
    assert needed == alone.value.needed + output
    assert refused.value.__notes__ == ["11 KiB of that are for the output array"]
    with pytest.raises(DoesNotFit):
        znni.Inferer(network, weights, ram=needed - 1)(voxels())
    found = znni.Inferer(network, weights, ram=needed)(voxels())
    np.testing.assert_allclose(found, expected(network, weights, voxels()), atol=1e-5)


def test_an_inferer_checks_a_plan_for_what_it_is_called_with(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    prepared: list[Any] = []
    original = znni.inferer.prepare
    monkeypatch.setattr(znni.inferer, "prepare", lambda *a: prepared.append(a) or original(*a))
    plan = znni.plan(network, (4, 10, 12), input_itemsize=1)
    small, output = voxels((4, 10, 12)), 4 * 2 * 3 * 5 * 5
    inferer = znni.Inferer(network, weights, plan, ram=plan.memory.total + output)
    inferer(small)
    with pytest.raises(InvalidInput, match="11 KiB of it for the output array, and"):
        inferer(voxels())
    with pytest.raises(InvalidInput, match="are allowed"):
        inferer(small.astype("float64"))
    inferer(small)
    assert len(prepared) == 1
    with pytest.raises(InvalidInput, match="are allowed"):
        znni.Inferer(network, weights, plan, ram=plan.memory.total + output - 1)(small)


def test_an_inferer_with_a_plan_runs_it_on_any_size(network: Network, weights: Weights) -> None:
    plan = znni.plan(network, (4, 10, 12))
    inferer = znni.Inferer(network, weights, plan)
    for shape in (VOLUME, (4, 10, 12), (2, 6, 8)):
        volume = voxels(shape)
        np.testing.assert_allclose(inferer(volume), expected(network, weights, volume), atol=1e-5)
    other = Network("other", 1, network.layers, network.scaling)
    with pytest.raises(InvalidInput, match="the plan is for network tiny"):
        znni.Inferer(other, weights, plan)(voxels())


def test_an_inferer_pads(network: Network, weights: Weights) -> None:
    inferer = znni.Inferer(network, weights, border="same", pad="edge")
    found = inferer(voxels())
    assert found.shape == (2, *VOLUME)
    np.testing.assert_allclose(
        found[:, :6, 2:17, 3:19], expected(network, weights, voxels()), atol=1e-5
    )


def test_an_inferer_refuses(network: Network, weights: Weights) -> None:
    inferer = znni.Inferer(network, weights)
    for array, said in (
        (voxels((2, *VOLUME)), "2 maps"),
        (voxels((*VOLUME, 1)), r"the maps: move it to the front"),
        (voxels((2, 2, 2)), "field of view"),
        (np.full(VOLUME, np.nan), "holds nan at voxel z=0, y=0, x=0"),
        (voxels().tolist(), "a list"),
        (voxels(dtype="complex64"), "complex64"),
    ):
        with pytest.raises(InvalidInput, match=said):
            inferer(array)
    np.testing.assert_allclose(inferer(voxels()), expected(network, weights, voxels()), atol=1e-5)
    with pytest.raises(InvalidInput, match=r"weights=znni\.random_weights\(network, 0\)"):
        znni.Inferer(Network("none", 1, network.layers))


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


def test_less_accuracy_is_for_those_who_ask(
    monkeypatch: pytest.MonkeyPatch, network: Network, weights: Weights
) -> None:
    inexact = Fake("inexact", convolved, flops=10.0, accuracy=5e-3)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue(inexact))
    plan = znni.plan(network, VOLUME, accuracy="bfloat16")
    assert "inexact" in plan.to_json()
    assert "inexact" not in znni.plan(network, VOLUME).to_json()
    out = np.empty((2, 6, 15, 16), np.float32)
    report = znni.infer(voxels(), network, out, weights=weights, accuracy="bfloat16", plan=plan)
    assert report.attributes["accuracy"] == "bfloat16"
    assert "; accuracy bfloat16 in conv1, conv2" in str(report)
    with pytest.raises(InvalidInput, match=r"conv1 by inexact.*--accuracy bfloat16"):
        znni.infer(voxels(), network, out, weights=weights, plan=plan)
    with pytest.raises(InvalidInput, match=r"conv1 by inexact.*--accuracy bfloat16"):
        znni.Inferer(network, weights, plan)(voxels())
    for given in (plan, None):
        inferer = znni.Inferer(network, weights, given, accuracy="bfloat16")
        np.testing.assert_array_equal(inferer(voxels()), out)


def test_weights_that_a_program_made_are_checked(network: Network, weights: Weights) -> None:
    first = weights["conv1"]
    narrow = ConvWeights(first.weight[..., :2], first.bias)
    wrong = Weights({**weights.layers, "conv1": narrow}, "mine")
    said = r"mine: layer conv1: weight has shape .*, 3, 2\); the network needs .*, 3, 3\)"
    with pytest.raises(InvalidInput, match=said):
        znni.Inferer(network, wrong)
    with pytest.raises(InvalidInput, match=said):
        znni.infer(voxels(), network, "out.h5", weights=wrong)
    with pytest.raises(InvalidInput, match=r"both random weights and the weights tiny\.npz"):
        znni.infer(voxels(), network, "out.h5", weights=weights, random_seed=1)
    assert not Path("out.h5").exists()


def test_real_weights_and_volumes_in_any_order_and_precision(
    network: Network, weights: Weights
) -> None:
    turned = {
        name: ConvWeights(np.asfortranarray(layer.weight, float), np.repeat(layer.bias, 2)[::2])
        for name, layer in weights.layers.items()
    }
    volume = np.asfortranarray(voxels((7, 21, 23)))  # of whole patches: read as it is stored
    found = znni.Inferer(network, Weights(turned, "mine"), threads=2)(volume)
    np.testing.assert_allclose(found, expected(network, weights, volume), atol=1e-5)


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
