"""Cascades: the labels of an earlier network are further maps of the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_reference import OPTIONS, check, ct, network, run_case
from case_scans import nibabel, scan, write
from numpy.typing import NDArray
from scipy import ndimage

from znni.calibration.overhead_figures import PROCESS_BYTES
from znni.cases import input_slabs
from znni.cases.case import predict
from znni.cases.case_folder import BEFORE, Case
from znni.cases.forecast import forecast
from znni.cases.previous_stage import PreviousNetwork
from znni.core.errors import InvalidInput
from znni.inference.session import Session
from znni.machine.arrays import peak_memory
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights

SPACING = (2.5, 1.2, 1.0)
NORMALIZE = "[{mean: 20, std: 50, clip: [-100, 150]}, {mean: 0, std: 1}, {mean: 0, std: 1}]"
STAGE = "{channels: [CT], previous_stage: {name: low, labels: [1, 2]}}"


def second_stage(**changes: str) -> Network:
    given = {"in_features": "3", "case": STAGE}
    given["input"] = f"{{normalize: {NORMALIZE}, crop: nonzero}}"
    return network(**given | changes)


def blobs() -> NDArray[np.uint8]:
    """Return labels over the scan, some of them where it is 0."""
    smooth = ndimage.gaussian_filter(np.random.default_rng(3).standard_normal((15, 22, 20)), 2)
    return np.digitize(smooth, np.quantile(smooth, [0.5, 0.75])).astype(np.uint8)


def masked(values: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return a scan with zeros in a corner, open to the outside."""
    values[1:7, 2:9, 3:8] = 0
    values[1, 2, 3] = 7
    return values


def scores(crop: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return scores within the mask and where there are labels."""
    mask = ndimage.binary_fill_holes(crop != 0) | (blobs()[1:-2, 2:-1, 3:-2] != 0)
    inside = crop[mask]
    return np.asarray(np.where(mask, (crop - inside.mean()) / inside.std(), 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalize", "expected"),
    [
        (f"{{normalize: {NORMALIZE}, crop: nonzero}}", ct),
        (
            "{normalize: [zscore, {mean: 0, std: 1}, {mean: 0, std: 1}], within: nonzero, "
            "crop: nonzero}",
            scores,
        ),
    ],
)
@pytest.mark.parametrize("slab", [2**28, 1])
def test_labels_before_are_further_maps(
    tmp_path: Path,
    normalize: str,
    expected: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    slab: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_slabs, "SLAB_BYTES", slab)
    net, values = second_stage(input=normalize), masked(scan())
    file, before = write(tmp_path / "scan.nii", values), write(tmp_path / "low.nii.gz", blobs())
    labels = run_case(Case((file,), tmp_path / "labels.nii", before), net)
    check(net, labels, values, SPACING, expected, blobs())
    others = write(tmp_path / "none.nii.gz", np.zeros_like(blobs()))
    without = run_case(Case((file,), tmp_path / "labels.nii", others), net)
    assert (without != labels).any()


@pytest.mark.slow
def test_a_turned_scan_has_turned_labels_before(tmp_path: Path) -> None:
    case = STAGE.replace("[CT],", "[CT], orientation: RAS,")
    net = second_stage(case=case)
    for name, values in (("scan", scan()), ("low", blobs())):
        nibabel.save(
            nibabel.load(write(tmp_path / "stored.nii", values)).as_reoriented(
                np.array([[2, 1], [0, -1], [1, 1]])
            ),
            tmp_path / f"{name}.nii",
        )
    out = tmp_path / "labels.nii"
    run_case(Case((tmp_path / "scan.nii",), out, tmp_path / "low.nii"), net)
    labels = np.asarray(nibabel.as_closest_canonical(nibabel.load(out)).dataobj).T
    check(net, labels, scan(), SPACING, ct, blobs())


@pytest.mark.slow
def test_the_earlier_network_runs_in_the_case_s_folder(tmp_path: Path) -> None:
    low, net = network(spacing="4,2.5,2.5"), second_stage()
    weights = random_weights(low, 7)
    file = write(tmp_path / "scan.nii.gz", scan())
    run_case(Case((file,), tmp_path / "low.nii"), low)
    expected = run_case(Case((file,), tmp_path / "expected.nii", tmp_path / "low.nii"), net)
    case = Case((file,), tmp_path / "labels.nii", PreviousNetwork(low, weights))
    found = forecast(case, net, OPTIONS)
    alone = forecast(replace(case, previous=None), low, OPTIONS)
    assert found.memory["previous stage"] == 4 * net.parameters + max(alone.memory.values())
    assert found.memory["network"] == 4 * low.parameters + found.plans[0].memory.total
    assert found.seconds["previous stage"] == sum(alone.seconds.values())
    steps: list[str] = []

    def stopped(name: str, done: int, _total: int) -> None:
        steps.append(name)
        if "writing" in steps and name == "network" and done:  # the second stage's
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(case, net, random_weights(net, 7), Session(), OPTIONS, stopped)
    assert [path.name for path in case.folder.iterdir() if path.is_dir()] == []
    steps.clear()
    report = predict(
        case, net, random_weights(net, 7), Session(), OPTIONS,
        lambda name, _done, _total: steps.append(name),
    )  # fmt: skip
    assert "resampling" not in steps  # of either stage
    assert [*report.seconds] == ["low", "reading", "resampling", "network", "writing"]
    np.testing.assert_array_equal(np.asarray(nibabel.load(case.out).dataobj).T, expected)


MAPS, RAM = 64, 720 * 2**20
FIRST = f"""\
name: low
in_features: 1
input: {{normalize: [{{mean: 20, std: 50}}]}}
labels: {{background: 0, {", ".join(f"label{number}: {number}" for number in range(1, MAPS))}}}
spacing: 2.5,1.2,1
window: {{size: [32, 32, 32], like: nnunet}}
case: {{channels: [CT]}}
layers: [conv: {{features: {MAPS}, kernel: 1}}, instance_norm: {{}}]
"""
SECOND = f"""\
name: second
in_features: 3
input: {{normalize: {NORMALIZE}}}
labels: {{background: 0, organ: 1, vessel: 2}}
spacing: 2.5,1.2,1
window: {{size: [4, 4, 4], like: nnunet}}
case: {STAGE}
layers:
  - conv: {{features: 800, kernel: 1}}
  - conv: {{features: 800, kernel: 3, padding: same}}
  - conv: {{features: 3, kernel: 1}}
"""


@pytest.mark.slow
def test_the_earlier_network_leaves_memory_for_the_weights_of_the_later_one(tmp_path: Path) -> None:
    """These lie in no file that could be mapped."""
    first, second = (network_from_text(text, "net.yaml") for text in (FIRST, SECOND))
    values = np.random.default_rng(0).integers(-100, 200, (64, 120, 120)).astype(np.int16)
    file, weights = write(tmp_path / "scan.nii", values), random_weights(second, 7)
    options = replace(OPTIONS, limits=replace(OPTIONS.limits, ram=RAM))

    def taken(number: int) -> int:
        """Return the bytes that the earlier network takes beside the process and other weights."""
        previous = PreviousNetwork(first, random_weights(first, number))
        case = Case((file,), tmp_path / f"{number}.nii", previous)

        def stopped(name: str, _done: int, _total: int) -> None:
            if name == "resampling" and (case.folder / BEFORE).exists():
                raise KeyboardInterrupt

        with peak_memory() as peak, pytest.raises(KeyboardInterrupt):
            predict(case, second, weights, Session(), options, stopped)
        return peak.added

    taken(0)  # its code is compiled
    assert taken(1) + weights.nbytes <= RAM - PROCESS_BYTES


@pytest.mark.slow
def test_what_is_wrong_with_labels_before_is_named(tmp_path: Path) -> None:
    net, file = second_stage(), write(tmp_path / "scan.nii", scan())

    def refused(previous: Path | None) -> str:
        with pytest.raises(InvalidInput) as error:
            run_case(Case((file,), tmp_path / "labels.nii", previous), net)
        return str(error.value)

    def refused_either_way(previous: Path | None) -> str:
        with pytest.raises(InvalidInput) as error:
            forecast(Case((file,), tmp_path / "labels.nii", previous), net, OPTIONS)
        assert refused(previous) == str(error.value)
        return str(error.value)

    assert "takes the labels of low too; give their file after" in refused_either_way(None)
    for other in (
        write(tmp_path / "other.nii.gz", blobs()[:-1]),
        write(tmp_path / "wide.nii.gz", blobs(), np.diag([1.0, 1.2, 5.0, 1.0])),
    ):
        said = refused_either_way(other)
        assert said.startswith(f"{other} has 1 x ")
        assert "the labels of low need the voxels of the scan" in said
    many = write(tmp_path / "many.nii", blobs() * 3)
    assert "there is a label 6, and low gives labels up to 2" in refused(many)
    empty = write(tmp_path / "nan.nii", np.full(blobs().shape, np.nan, np.float32))
    assert "there is a label nan, and low gives labels up to 2" in refused(empty)
    assert "none.nii: no such file; check the path" in refused_either_way(tmp_path / "none.nii")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": "2"}, "1 channel and 2 labels of low make 3 maps, and in_features is 2"),
        ({"input": "{normalize: zscore}"}, "give a normalization for each of the 3 maps"),
        ({"case": STAGE.replace("[1, 2]", "[]")}, "labels"),
        (
            {"case": STAGE.replace("[1, 2]", "[1, 2], resampled: {order: 3}")},
            "labels of the previous stage are resampled by order 3",
        ),
    ],
)
def test_a_network_file_says_how_many_maps_there_are(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        second_stage(**changes)
    assert message in str(error.value)
