"""Several networks on one scan: the scan is prepared once, and their labels are joined."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_scans import NET, nibabel, scan, weights_file, write
from command_line import refused, succeeds
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy import ndimage

from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.cases.folder import cases_in, predict_cases
from znni.cases.forecast import forecast
from znni.cases.network_runs import LABELS, NetworkRuns, numbered
from znni.cases.network_set import networks_at
from znni.cases.networks import NetworkSet, alone, beside_weights, joined
from znni.cases.verification import verify_case
from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit, StepDoesNotFit
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.inference.session import Session
from znni.network.case_rules import PreviousStage
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import load_network, network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.volumes.locate import open_volume

OPTIONS = Options(limits=Choices(device="cpu", threads=1, costs="built-in"))
NUMBERS = {"rib": 300, "spine": 4, "organ": 1, "vessel": 2, "vein": 5, "artery": 6}
SET = """\
networks: [organs.yaml, vessels.yaml, bones.yaml]
labels: {background: 0, rib: 300, spine: 4, organ: 1, vessel: 2, vein: 5, artery: 6}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with three networks, their set, and a scan.

    The first and the last network take the same input. The second has other voxels.
    """
    names = {
        "organs": ("organ", "vessel", "2,1.5,1.5"),
        "bones": ("rib", "spine", "2,1.5,1.5"),
        "vessels": ("vein", "artery", "2.5,1.5,2"),
    }
    for seed, (name, (one, two, spacing)) in enumerate(names.items()):
        text = NET.replace("name: organs", f"name: net\nweights: {name}.npz")
        text = text.replace("organ: 1, vessel: 2", f"{one}: 1, {two}: 2")
        text = text.replace("spacing: 2,1.5,1.5", f"spacing: {spacing}")
        (tmp_path / f"{name}.yaml").write_text(text)
        weights_file(tmp_path / f"{name}.npz", load_network(tmp_path / f"{name}.yaml"), seed)
    (tmp_path / "all.yaml").write_text(SET)
    write(tmp_path / "ct.nii.gz", scan())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def labels_in(path: Path) -> NDArray[np.uint16]:
    return np.asarray(nibabel.load(path).dataobj).T


def run(networks: NetworkSet, out: Path) -> NDArray[np.uint16]:
    predict(Case((Path("ct.nii.gz"),), out), networks, networks.weights(), Session(), OPTIONS)
    return labels_in(out)


def each_alone(folder: Path) -> list[NDArray[np.uint16]]:
    return [
        run(networks_at(folder / f"{name}.yaml"), folder / f"{name}.nii")
        for name in ("organs", "vessels", "bones")
    ]


def expected(folder: Path) -> NDArray[np.uint16]:
    """Return the labels of the networks one by one, the later ones over the earlier."""
    made = np.zeros(scan().shape, np.uint16)
    for labels, (one, two) in zip(each_alone(folder), ((1, 2), (5, 6), (300, 4)), strict=True):
        made[labels == 1] = one
        made[labels == 2] = two
    return made


def test_labels_are_those_of_the_networks_one_by_one(folder: Path) -> None:
    wanted = expected(folder)
    assert set(np.unique(wanted)) >= {0, 4, 5, 6, 300}
    steps: list[str] = []
    networks = networks_at(folder / "all.yaml")
    report = predict(
        Case((Path("ct.nii.gz"),), folder / "all.nii"), networks, networks.weights(), Session(),
        OPTIONS, lambda step, _done, _total: steps.append(step),
    )  # fmt: skip
    np.testing.assert_array_equal(labels_in(folder / "all.nii"), wanted)
    noted = json.loads(open_volume(folder / "all.nii").attribute("labels"))
    assert noted == {"background": 0} | NUMBERS
    assert len(report.reports) == 3
    changes = [step for step, before in zip(steps, ["", *steps], strict=False) if step != before]
    assert changes == [*["reading", "resampling"] * 2, "network", "writing"]
    assert not list(folder.glob("*.case"))


@pytest.mark.slow
def test_networks_of_equal_layers_keep_their_own_weights(folder: Path) -> None:
    """A session that keeps what is ready does not mix up networks of one name and form."""
    first, _, second = networks_at(folder / "all.yaml").networks
    assert first == second
    write(folder / "a_0000.nii.gz", scan())
    write(folder / "b_0000.nii.gz", scan())
    networks = joined("both", [first, second])
    cases = cases_in(folder, folder, networks.rules)
    report = predict_cases(cases, networks, OPTIONS)
    assert not report.failures
    one, _, two = each_alone(folder)
    wanted = np.where(two > 0, two + 2, one)
    for name in ("a", "b"):
        np.testing.assert_array_equal(labels_in(folder / f"{name}.nii.gz"), wanted)


@pytest.mark.slow
def test_components_are_removed_from_joined_labels(folder: Path) -> None:
    networks, rules = networks_at(folder / "all.yaml"), [KeepLargest((300,))]
    before = run(networks, folder / "before.nii")
    case = Case((Path("ct.nii.gz"),), folder / "after.nii")
    predict(case, networks, networks.weights(), Session(), OPTIONS, removing=rules)
    found, count = ndimage.label(before == 300, np.ones((3, 3, 3)))
    voxels = np.bincount(found.ravel())[1:]
    assert count > 1
    removed = np.isin(found, 1 + np.flatnonzero(voxels < voxels.max()))
    assert removed.any()
    np.testing.assert_array_equal(labels_in(case.out), np.where(removed, 0, before))


@pytest.mark.slow
@pytest.mark.parametrize(("stop_at", "left"), [(1, 2), (2, 1)])
def test_a_set_that_was_stopped_goes_on_with_the_next_network(
    folder: Path, stop_at: int, left: int
) -> None:
    networks = networks_at(folder / "all.yaml")
    wanted = run(networks, folder / "wanted.nii")
    case = Case((Path("ct.nii.gz"),), folder / "all.nii")
    finished = case.folder / numbered(LABELS, stop_at - 1)

    def stopped(step: str, _done: int, _total: int) -> None:
        if step == "network" and finished.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(case, networks, networks.weights(), Session(), OPTIONS, stopped)
    report = predict(case, networks, networks.weights(), Session(), OPTIONS)
    assert len(report.reports) == left
    np.testing.assert_array_equal(labels_in(case.out), wanted)


@pytest.mark.slow
def test_infer_takes_a_set_file(folder: Path) -> None:
    line = "infer", "ct.nii.gz", "--net", "all.yaml", "--device", "cpu"
    said = succeeds(*line, "--dry-run")
    assert sum(line.startswith("layer ") for line in said.splitlines()) == 3
    assert [line.split()[0] for line in said.splitlines()[-7:-1]] == [
        "step", "reading", "resampling", "network", "writing", "all",
    ]  # fmt: skip
    assert succeeds(*line).startswith("ct-all.nii.gz: ")
    np.testing.assert_array_equal(labels_in(folder / "ct-all.nii.gz"), expected(folder))
    assert "has 3 networks; name the weights in their files" in refused(
        *line, "--overwrite", "--weights", "organs.npz"
    )


@pytest.mark.slow
def test_memory_is_that_of_the_largest_network_and_all_weights(folder: Path) -> None:
    networks = networks_at(folder / "all.yaml")
    case = Case((Path("ct.nii.gz"),), folder / "all.nii")
    found = forecast(case, networks, OPTIONS)
    assert len(found.plans) == 3
    each = 4 * networks.networks[0].parameters
    assert found.memory["network"] == 2 * each + max(plan.memory.total for plan in found.plans)
    assert found.seconds["network"] == sum(plan.seconds for plan in found.plans)
    limited = replace(OPTIONS.limits, ram=2**30)
    assert beside_weights(limited, networks) == (replace(limited, ram=2**30 - 2 * each), 2 * each)
    assert beside_weights(limited, alone(networks.networks[0])) == (limited, 0)
    within = forecast(case, networks, replace(OPTIONS, limits=limited))
    assert within.allowed == 2**30
    little = replace(OPTIONS, limits=replace(limited, ram="600MiB"))
    with pytest.raises(StepDoesNotFit) as error:
        forecast(case, networks, little)
    assert error.value.allowed == 600 * 2**20
    large = networks_of_large_windows(folder)
    less = replace(OPTIONS, limits=replace(limited, ram="400MiB"))
    with pytest.raises(DoesNotFit) as short:
        forecast(case, large, less)
    assert any("the weights of the other networks take" in note for note in short.value.__notes__)


def networks_of_large_windows(folder: Path) -> NetworkSet:
    """Return the set, with windows that take more memory than any other step."""
    networks = networks_at(folder / "all.yaml")
    wide = tuple(with_window(it, Window(Vec3(160, 160, 160))) for it in networks.networks)
    return replace(networks, networks=wide)


def named(**labels: int) -> Network:
    text = NET.replace("background: 0, organ: 1, vessel: 2", str(labels)[1:-1].replace("'", ""))
    return network_from_text(text, "net.yaml")


def test_names_are_numbered_in_the_order_of_the_networks() -> None:
    found = joined("set", [named(other=0, b=2, a=1), named(rest=0, d=7, c=5)])
    assert found.numbers == (((0, 0), (2, 1), (1, 2)), ((0, 0), (7, 3), (5, 4)))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((), "a occurs twice"),
        ((("a", 1), ("b", 2)), "a occurs twice, c is missing"),
        ((("a", 1), ("b", 2), ("c", 0)), "c is 0, which is the background"),
        ((("a", 1), ("b", 2), ("c", 3), ("liver", 4)), "no liver"),
        ((("ground", 1), ("a", 2), ("b", 3), ("c", 4)), "ground is the background"),
    ],
)
def test_wrong_names_are_one_error(labels: tuple[tuple[str, int], ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        joined("set", [named(ground=0, a=1, b=2), named(ground=0, a=1, c=2)], labels)
    assert "They are a, b, c" in str(error.value)


def test_networks_of_different_scans_are_an_error(folder: Path) -> None:
    one = load_network(folder / "organs.yaml")
    assert one.case is not None
    other = replace(one, case=replace(one.case, orientation="RAS"))
    with pytest.raises(
        InvalidInput, match="differ in channels:, file_ending:, orientation: or voxels:"
    ):
        joined("set", [one, other])
    assert one.spacing is not None
    micrometers = replace(one, spacing=replace(one.spacing, unit="micrometer"))
    with pytest.raises(InvalidInput, match="or in the unit of spacing:"):
        joined("set", [one, micrometers])
    with pytest.raises(InvalidInput, match="does not name its labels"):
        joined("set", [one, replace(one, labels=())])
    (folder / "wrong.yaml").write_text("networks: [organs.yaml, organs.yaml]\n")
    assert "wrong.yaml, line 1: labels of the set: organ occurs twice, vessel occurs twice" in (
        refused("infer", "ct.nii.gz", "--net", "wrong.yaml")
    )


def test_weights_of_random_networks_differ(folder: Path) -> None:
    """The test above means something only if equal networks have different weights."""
    one, _, other = networks_at(folder / "all.yaml").weights()
    assert one.sha256 != other.sha256
    assert random_weights(load_network(folder / "organs.yaml"), 0).sha256 == one.sha256


def test_what_belongs_to_a_single_network_is_refused_for_a_set(folder: Path) -> None:
    networks = networks_at(folder / "all.yaml")
    case = Case((Path("ct.nii.gz"),), folder / "all.nii", probabilities=folder / "all.npz")
    with pytest.raises(InvalidInput, match="saved for a single network"):
        predict(case, networks, networks.weights(), Session(), OPTIONS)
    assert not case.folder.exists()
    with pytest.raises(InvalidInput, match="all joins the labels of networks; verify those of"):
        verify_case(case, networks, networks.weights())
    one, other, _ = networks.networks
    assert one.case is not None
    later = replace(one, case=replace(one.case, previous_stage=PreviousStage("low", (1,))))
    with pytest.raises(InvalidInput, match="takes the labels of low too"):
        joined("set", [later, other])


def mapped_bytes(folder: Path) -> int:
    """Return the bytes of weights in a folder that lie in this process's memory."""
    taken, is_weights = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            is_weights = str(folder) in line and line.endswith(".safetensors")
        elif is_weights and line.startswith("Rss:"):
            taken += int(line.split()[1]) * 1024
    return taken


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_weights_of_networks_that_do_not_run_take_no_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = networks_at(folder / "all.yaml")
    assert beside_weights(OPTIONS.limits, read)[1] > 0
    expected = run(read, Path("read.nii.gz"))
    for name in ("organs", "vessels", "bones"):
        with np.load(f"{name}.npz") as arrays:
            save_file(dict(arrays), f"{name}.safetensors")
        file = folder / f"{name}.yaml"
        file.write_text(file.read_text().replace(".npz", ".safetensors"))
    taken, run_one = list[int](), NetworkRuns.run

    def measured(*arguments: Any) -> None:
        maps = Path("/proc/self/maps").read_text()
        assert all(f"{name}.safetensors" in maps for name in ("organs", "vessels", "bones"))
        run_one(*arguments)
        taken.append(mapped_bytes(folder))

    monkeypatch.setattr(NetworkRuns, "run", measured)
    monkeypatch.setattr(NetworkRuns, "open_ahead", lambda *_: None)  # it uses weights, too
    networks = networks_at(folder / "all.yaml")
    assert beside_weights(OPTIONS.limits, networks)[1] == 0
    np.testing.assert_array_equal(run(networks, Path("mapped.nii.gz")), expected)
    assert taken == [0, 0, 0]
