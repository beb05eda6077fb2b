"""Whole cases against the same steps by SciPy, over the whole scan and in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from case_reference import OPTIONS, check, network, run, scores_within
from case_scans import nibabel, scan, weights_file, write
from scipy import ndimage

from znni.cases import slabs
from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.cases.folder import cases_in, predict_cases
from znni.cases.folder_dry_run import rehearse_cases
from znni.cases.forecast import forecast
from znni.cases.networks import alone
from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.inference.session import Session
from znni.machine.detect import detect_for
from znni.network.network import Network
from znni.network.weights import random_weights


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_labels_are_those_of_the_steps_one_by_one(tmp_path: Path, ending: str) -> None:
    net, values = network(), scan()
    file = write(tmp_path / f"scan{ending}", values)
    labels = run(net, (file,), tmp_path / f"labels{ending}")
    check(net, labels, values, (2.5, 1.2, 1.0))
    given, made = nibabel.load(file), nibabel.load(tmp_path / f"labels{ending}")
    np.testing.assert_allclose(made.affine, given.affine)
    assert made.get_data_dtype() == np.uint8


@pytest.mark.slow
@pytest.mark.parametrize("slab", [2**22, 400])
def test_holes_of_a_masked_scan_are_normalized(
    tmp_path: Path, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros that others surround count; zeros outside stay 0."""
    monkeypatch.setattr(slabs, "SLAB_VOXELS", slab)
    net = network(input="{normalize: zscore, within: nonzero, crop: nonzero}")
    values = scan()
    values[5:9, 8:13, 7:12] = 0  # a hole
    values[1:7, 2:9, 3:8] = 0  # open to the outside
    values[1, 2, 3] = 7
    labels = run(net, (write(tmp_path / "scan.nii", values),), tmp_path / "labels.nii")
    check(net, labels, values, (2.5, 1.2, 1.0), scores_within)


def test_a_scan_in_the_voxels_of_training_is_not_resampled(tmp_path: Path) -> None:
    net, values = network(spacing="2.5,1.2,1"), scan()
    labels = run(net, (write(tmp_path / "scan.nii", values),), tmp_path / "labels.nii")
    check(net, labels, values, (2.5, 1.2, 1.0))


@pytest.mark.slow_cases
@pytest.mark.parametrize("planes", [slice(None), 7])
def test_a_2d_network_sees_each_slice_by_itself(tmp_path: Path, planes: int | slice) -> None:
    """Slices are not resampled across. A file may have a single one."""
    net = network(spacing="any,1.5,1.5", window="{size: [1, 8, 8], like: nnunet, mirror: yx}")
    values = scan()[planes]
    file = write(tmp_path / "scan.nii", values, np.diag([1.0, 1.2, 2.5, 1.0]))
    labels = run(net, (file,), tmp_path / "labels.nii")
    shape = (-1, *values.shape[-2:])
    check(net, labels.reshape(shape), values.reshape(shape), (2.5, 1.2, 1.0))


def test_a_3d_network_sees_a_single_slice(tmp_path: Path) -> None:
    values = scan()[7:8]
    labels = run(network(), (write(tmp_path / "scan.nii", values),), tmp_path / "labels.nii")
    check(network(), labels, values, (2.5, 1.2, 1.0))


@pytest.mark.parametrize(
    "normalize",
    ["[{mean: 20, std: 50}]", "zscore", "{percentiles: [0, 100]}"],
)
def test_a_scan_of_zeros_is_not_cropped(tmp_path: Path, normalize: str) -> None:
    net = network(input=f"{{normalize: {normalize}, crop: nonzero}}")
    values = np.zeros((6, 7, 8), np.int16)
    file = write(tmp_path / "scan.nii", values)
    assert run(net, (file,), tmp_path / "labels.nii").shape == values.shape
    masked = network(input="{normalize: zscore, within: nonzero, crop: nonzero}")
    with pytest.raises(InvalidInput, match="the volume is 0 everywhere, and is to be normalized"):
        run(masked, (file,), tmp_path / "labels.nii")


def test_slices_far_apart_are_resampled_one_by_one(tmp_path: Path) -> None:
    net, values = network(spacing="2,1.5,1.5"), scan((9, 22, 20))
    file = write(tmp_path / "scan.nii", values, np.diag([1.0, 1.2, 6.0, 1.0]))
    session = Session()
    seen: list[str] = []
    report = predict(
        Case((file,), tmp_path / "labels.nii"), net, random_weights(net, 7), session, OPTIONS,
        lambda step, _done, _total: seen.append(step),
    )  # fmt: skip
    window = report.reports[0].plan.network.window
    assert window is not None
    assert window.resampled is not None
    assert window.resampled.orders == (0, 1, 1)
    assert [*dict.fromkeys(seen)] == ["reading", "resampling", "network", "writing"]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)])
def test_an_oriented_network_sees_scans_turned(tmp_path: Path, axes: tuple[int, int, int]) -> None:
    """A scan whose file is turned and reversed gives the same labels, turned likewise."""
    net = network(case="{channels: [CT], orientation: RAS}")
    values, affine = scan(), np.diag([1.0, 1.2, 2.5, 1.0])
    straight = run(net, (write(tmp_path / "scan.nii", values, affine),), tmp_path / "labels.nii")
    image = nibabel.load(tmp_path / "scan.nii")
    turns = np.array([[axes.index(axis), -1 if axis == 0 else 1] for axis in range(3)])
    turned = image.as_reoriented(turns)
    nibabel.save(turned, tmp_path / "turned.nii")
    run(net, (tmp_path / "turned.nii",), tmp_path / "turned-labels.nii")
    found = nibabel.as_closest_canonical(nibabel.load(tmp_path / "turned-labels.nii"))
    np.testing.assert_array_equal(np.asarray(found.dataobj).T, straight)


@pytest.mark.slow_cases
@pytest.mark.parametrize("step", ["reading", "resampling", "network", "writing"])
def test_a_case_that_was_stopped_goes_on(tmp_path: Path, step: str) -> None:
    net, values = network(), scan()
    file = write(tmp_path / "scan.nii.gz", values)
    expected = run(net, (file,), tmp_path / "expected.nii.gz")
    case = Case((file,), tmp_path / "labels.nii.gz")
    weights = random_weights(net, 7)

    def stopped(name: str, done: int, _total: int) -> None:
        if name == step and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(case, net, weights, Session(), OPTIONS, stopped)
    assert not case.out.exists()
    image = case.folder / "input.npy"
    made = image.stat().st_mtime_ns if image.exists() else None
    assert (made is not None) == (step in ("network", "writing"))
    times: list[int | None] = []
    predict(
        case, net, weights, Session(), OPTIONS,
        lambda name, _done, _total: name == "writing" and times.append(image.stat().st_mtime_ns),
    )  # fmt: skip
    assert made in (None, times[0])
    np.testing.assert_array_equal(np.asarray(nibabel.load(case.out).dataobj).T, expected)


def test_only_the_largest_component_of_a_label_stays(tmp_path: Path) -> None:
    net, file = network(), write(tmp_path / "scan.nii", scan())
    labels = run(net, (file,), tmp_path / "labels.nii")
    out = tmp_path / "largest.nii"
    rules = [KeepLargest(labels=(1,)), KeepLargest(labels=(2,))]
    predict(Case((file,), out), net, random_weights(net, 7), Session(), OPTIONS, removing=rules)
    expected = np.zeros_like(labels)
    for label in (1, 2):
        components, _ = ndimage.label(labels == label, np.ones((3, 3, 3)))
        sizes = np.bincount(components.ravel())[1:]
        for kept in np.flatnonzero(sizes == sizes.max()):
            expected[components == kept + 1] = label
    assert (expected != labels).any()
    np.testing.assert_array_equal(np.asarray(nibabel.load(out).dataobj).T, expected)


@pytest.mark.slow
def test_a_changed_scan_starts_afresh(tmp_path: Path) -> None:
    net, case = network(), Case((tmp_path / "scan.nii",), tmp_path / "labels.nii")

    def stopped(name: str, _done: int, _total: int) -> None:
        if name == "writing":
            raise KeyboardInterrupt

    write(case.files[0], scan(seed=1))
    with pytest.raises(KeyboardInterrupt):
        predict(case, net, random_weights(net, 7), Session(), OPTIONS, stopped)
    write(case.files[0], scan((16, 21, 20), seed=2))
    labels = run(net, case.files, case.out)
    check(net, labels, scan((16, 21, 20), seed=2), (2.5, 1.2, 1.0))


def with_weights(folder: Path, net: Network) -> Network:
    weights_file(folder / "organs.npz", net)
    return replace(net, weights=folder / "organs.npz")


def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    net = with_weights(tmp_path, network())
    scans, out = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    out.mkdir()
    for name in ("a", "b", "c"):
        write(scans / f"{name}_0000.nii.gz", scan(seed=ord(name)))
    damaged = scans / "b_0000.nii.gz"
    damaged.write_bytes(damaged.read_bytes()[:300])
    assert net.case is not None
    cases = cases_in(scans, out, net.case)
    assert [case.out.name for case in cases] == ["a.nii.gz", "b.nii.gz", "c.nii.gz"]
    foreseen = rehearse_cases(cases, alone(net), OPTIONS)
    assert not list(out.iterdir())
    counts: list[tuple[int, int]] = []
    report = predict_cases(cases, net, OPTIONS, done=lambda *both: counts.append(both))
    assert [path.name for path in report.reports] == ["a.nii.gz", "c.nii.gz"]
    assert "b_0000.nii.gz: cannot be decompressed" in str(report.failures[0])
    assert counts == [(1, 3), (2, 3), (3, 3)]
    assert report.exit_code == foreseen.exit_code == 2
    assert list(map(str, foreseen.failures)) == list(map(str, report.failures))
    *lines, whole = foreseen.lines
    assert [line.split("  ")[0] for line in lines] == [str(case.out) for case in cases]
    assert whole.startswith("2 cases in ")
    assert whole.endswith(" together and 640 MiB, as predicted; 1 case refused")
    write(damaged, scan(seed=3))
    assert "keeps what is finished" not in str(report.failures[0])
    assert not cases[1].folder.exists()
    left = Case((), out / "a.nii.gz").folder
    left.mkdir()
    (left / "case").touch()
    (left / "labels.h5").touch()
    rest = rehearse_cases(cases, alone(net), OPTIONS, skip_finished=True)
    assert [*rest.runs] == [str(damaged)]
    assert rest.lines[-1].endswith("as predicted; 2 cases finished before")
    assert left.exists()
    again = predict_cases(cases, net, OPTIONS, skip_finished=True)
    assert sorted(path.name for path in out.iterdir()) == ["a.nii.gz", "b.nii.gz", "c.nii.gz"]
    assert [path.name for path in again.reports] == ["b.nii.gz"]
    assert len(again.finished_before) == 2


def test_channels_may_have_files_of_one_name(tmp_path: Path) -> None:
    net = network(case="{channels: [T1, T2]}", in_features="2")
    net = replace(net, scaling=replace(net.scaling, normalize=net.scaling.normalize * 2))
    files = []
    for folder, seed in (("t1", 1), ("t2", 2)):
        (tmp_path / folder).mkdir()
        files.append(write(tmp_path / folder / "img.nii.gz", scan(seed=seed)))
    renamed = [path.rename(path.with_name(f"{path.parent.name}.nii.gz")) for path in files]
    expected = run(net, tuple(renamed), tmp_path / "expected.nii.gz")
    for path, old in zip(files, renamed, strict=True):
        old.rename(path)
    np.testing.assert_array_equal(run(net, tuple(files), tmp_path / "labels.nii.gz"), expected)


@pytest.mark.slow_cases
@pytest.mark.parametrize("unit", ["unknown", "sec"])
def test_channels_may_be_maps_of_one_file(tmp_path: Path, unit: str) -> None:
    """ITK notes a unit of time in every NIfTI, so its channels look like points in time."""
    net = network(case="{channels: [T1, T2]}", in_features="2")
    net = replace(net, scaling=replace(net.scaling, normalize=net.scaling.normalize * 2))
    channels = scan(seed=1), scan(seed=2)
    files = tuple(write(tmp_path / f"{n}.nii", each) for n, each in enumerate(channels))
    expected = run(net, files, tmp_path / "expected.nii")
    image = nibabel.Nifti1Image(np.stack(channels).T, nibabel.load(files[0]).affine)
    image.header.set_xyzt_units("mm", unit)
    for name in ("scan.nii", "scan.nii.gz"):
        nibabel.save(image, tmp_path / name)
        np.testing.assert_array_equal(
            run(net, (tmp_path / name,), tmp_path / "labels.nii"), expected
        )
    with pytest.raises(InvalidInput, match=r"1 file with 2 maps in all, and a case has 1: CT;"):
        run(network(), (tmp_path / "scan.nii",), tmp_path / "labels.nii")
    with pytest.raises(InvalidInput, match=r"2 files with 3 maps in all, and a case has 2: T1, T2"):
        run(net, (tmp_path / "scan.nii", files[0]), tmp_path / "labels.nii")


def test_a_scan_may_be_one_of_several_datasets(tmp_path: Path) -> None:
    net, file = network(), tmp_path / "scan.h5"
    with h5py.File(file, "w") as made:
        for name, seed in (("a", 1), ("b", 2)):
            made[name] = scan(seed=seed)
            made[name].attrs["element_size_um"] = 2500.0, 1200.0, 1000.0
    with pytest.raises(InvalidInput, match=r"has several volumes: .*; name one, as .*:/a"):
        run(net, (file,), tmp_path / "labels.nii")
    out = tmp_path / "labels.nii"

    def stopped(name: str, _done: int, _total: int) -> None:
        if name == "writing":
            raise KeyboardInterrupt

    case = Case((Path(f"{file}:/a"),), out)
    with pytest.raises(KeyboardInterrupt):
        predict(case, net, random_weights(net, 7), Session(), OPTIONS, stopped)
    check(net, run(net, (Path(f"{file}:/b"),), out), scan(seed=2), (2.5, 1.2, 1.0))


def test_other_weights_start_afresh(tmp_path: Path) -> None:
    net, case = network(), Case((write(tmp_path / "scan.nii", scan()),), tmp_path / "labels.nii")

    def stopped(name: str, _done: int, _total: int) -> None:
        if name == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(case, net, random_weights(net, 8), Session(), OPTIONS, stopped)
    check(net, run(net, case.files, case.out), scan(), (2.5, 1.2, 1.0))


def test_voxels_are_taken_in_the_unit_of_the_network(tmp_path: Path) -> None:
    expected = run(network(), (write(tmp_path / "scan.nii", scan()),), tmp_path / "expected.nii")
    net = network(spacing="2000,1500,1500um")
    image = nibabel.load(tmp_path / "scan.nii")
    image.header.set_xyzt_units("mm")
    nibabel.save(image, tmp_path / "mm.nii")
    np.testing.assert_array_equal(
        run(net, (tmp_path / "mm.nii",), tmp_path / "labels.nii"), expected
    )
    np.save(tmp_path / "bare.npy", scan())
    with pytest.raises(InvalidInput, match=r"bare.npy does not say how large its voxels are"):
        run(net, (tmp_path / "bare.npy",), tmp_path / "bare.nii")


def test_a_gpu_that_is_not_there_is_found_before_the_first_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = replace(detect_for("cpu"), gpus=())
    monkeypatch.setattr("znni.inference.plan_choice.detect_for", lambda *_: here)
    net = with_weights(tmp_path, network())
    cases = [Case((tmp_path / f"{name}.nii",), tmp_path / "labels.nii") for name in "abc"]
    on_gpu = Options(limits=Choices(device="gpu"))
    for act in (predict_cases, rehearse_cases):
        with pytest.raises(InvalidInput, match=r"^device='gpu' \(--device gpu\): "):
            act(cases, alone(net), on_gpu)


def test_what_is_in_the_way_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    net, file = network(), write(tmp_path / "scan.nii", scan())
    weights = random_weights(net, 7)

    def refused(out: str) -> str:
        case = Case((file,), tmp_path / out)
        with pytest.raises(InvalidInput) as error:
            predict(case, net, weights, Session(), OPTIONS)
        with pytest.raises(InvalidInput) as foreseen:
            forecast(case, net, OPTIONS)
        assert str(foreseen.value) == str(error.value)
        return str(error.value)

    assert "scan.nii" in refused("scan.nii")
    assert "labels.txt" in refused("labels.txt")
    said = f"{tmp_path}/scan.nii/labels.nii: cannot be written there: Not a directory"
    assert refused("scan.nii/labels.nii").startswith(said)
    (tmp_path / "begun.nii.case").mkdir()
    (tmp_path / "begun.nii.case" / "tmp1.partial").touch()  # of a run that was killed
    predict(Case((file,), tmp_path / "begun.nii"), net, weights, Session(), OPTIONS)
    (tmp_path / "mine.nii.case").mkdir()
    (tmp_path / "mine.nii.case" / "thesis.txt").touch()
    assert "this folder is not znni's" in refused("mine.nii")
    assert (tmp_path / "mine.nii.case" / "thesis.txt").exists()
    case = Case((file,), tmp_path / "labels.nii")

    def again(name: str, _done: int, _total: int) -> None:
        if name == "writing":
            predict(case, net, weights, Session(), OPTIONS)

    with pytest.raises(InvalidInput, match="is in use, maybe by another run"):
        predict(case, net, weights, Session(), OPTIONS, again)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    net = network()
    assert net.case is not None
    with pytest.raises(InvalidInput, match=r"has no scans: .* channel ends in _0000\.nii\.gz"):
        cases_in(tmp_path, tmp_path, net.case)
    (tmp_path / "patient1.nii.gz").touch()
    named = r"its 1 file such as patient1\.nii\.gz: .* name it patient1_0000\.nii\.gz, or make"
    with pytest.raises(InvalidInput, match=named):
        cases_in(tmp_path, tmp_path, net.case)
    with pytest.raises(InvalidInput, match="give a folder of scans"):
        cases_in(tmp_path / "none", tmp_path, net.case)
    for wrong, message in (
        (replace(net, case=None), "does not say how whole cases are processed"),
        (replace(net, spacing=None), "does not say on which voxels it was trained"),
    ):
        with pytest.raises(InvalidInput, match=message):
            run(wrong, (write(tmp_path / "scan.nii", scan()),), tmp_path / "labels.nii")
    two = network(case="{channels: [CT, PET]}", in_features="2")
    with pytest.raises(InvalidInput, match="1 file, and a case has 2: CT, PET"):
        run(two, (tmp_path / "scan.nii",), tmp_path / "labels.nii")
    other = write(tmp_path / "other.nii", scan((15, 22, 21)))
    with pytest.raises(InvalidInput, match="the files of a case need equal voxels"):
        run(two, (tmp_path / "scan.nii", other), tmp_path / "labels.nii")
    with pytest.raises(InvalidInput, match="no such file; check the path"):
        run(net, (tmp_path / "none.nii",), tmp_path / "labels.nii")
