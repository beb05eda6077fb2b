"""Whole cases by command: with a network file, and with a results folder of nnU-Net."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from case_scans import NET, nibabel, scan, weights_file, write
from command_line import cut, refused, succeeds

import znni
from znni.cases.case_folder import Case, held
from znni.cli.nnunet import _noting_labels
from znni.network.network_file import load_network

STEPS = ("reading", "resampling", "network", "writing", "all")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a network, its weights, and a scan; it is the current folder."""
    (tmp_path / "organs.yaml").write_text(
        NET.replace("name: organs", "name: organs\nweights: w.npz")
    )
    weights_file(tmp_path / "w.npz", load_network(tmp_path / "organs.yaml"))
    write(tmp_path / "ct.nii.gz", scan())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_infer_computes_the_labels_of_a_scan(folder: Path) -> None:
    line = "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--device", "cpu"
    said = succeeds(*line, "--out", "seg.nii.gz")
    assert said.startswith("seg.nii.gz: ")
    assert re.search(r"; network predicted [0-9.]+ s \([0-9.]+ s to [0-9.]+ m?s\)\n", said)
    labels = nibabel.load(folder / "seg.nii.gz")
    assert labels.shape == scan().T.shape
    assert len(np.unique(np.asarray(labels.dataobj))) == 3
    assert "seg.nii.gz: exists; give " in refused(*line, "--out", "seg.nii.gz")
    assert succeeds(*line).startswith("ct-organs.nii.gz: ")
    succeeds(*line, "--overwrite")
    assert "of a whole case, give --case and --net" in refused("verify", "seg.nii.gz")


def test_a_dry_run_promises_the_memory_of_a_case(folder: Path) -> None:
    line = "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--device", "cpu"
    said = succeeds(*line, "--out", "seg.nii.gz", "--dry-run")
    assert "the scan has 15x22x20 voxels, and the network's input at most 19x18x13" in said
    _, table = said.split("step ")
    rows = table.splitlines()[1:-1]
    assert [row.split()[0] for row in rows] == [*STEPS]
    assert all(re.search(r" s \([0-9.]+ s to [0-9.]+ s\)$", row) for row in rows)
    assert not list(folder.glob("seg*"))
    assert "MiB or more" in refused(*line, "--ram", "100MiB", "--dry-run", code=3)


def test_a_dry_run_finds_what_would_stop_the_run(folder: Path) -> None:
    line = "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--device", "cpu"

    def refused_either_way(*more: str) -> str:
        said = refused(*line, *more, "--dry-run")
        assert refused(*line, *more) == said
        return said

    assert "none.npz: no such weights file" in refused_either_way("--weights", "none.npz")
    said = refused_either_way("--out", "organs.yaml/seg.nii.gz")
    assert (
        said == "organs.yaml/seg.nii.gz: cannot be written there: Not a directory; write elsewhere"
    )
    cut("ct.nii.gz", 0.5)
    assert "ct.nii.gz: cannot be decompressed: " in refused_either_way("--out", "seg.nii.gz")
    write(folder / "ct.nii", scan())
    cut("ct.nii", 0.5)
    Path("ct.nii.gz").write_bytes(gzip.compress(Path("ct.nii").read_bytes()))
    said = refused_either_way("--out", "seg.nii.gz")
    assert said.startswith("ct.nii.gz: cannot be decompressed: its last ")
    assert not list(folder.glob("seg*"))


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (["--roi", "0:3,:,:"], "--roi"),
        (["--labels"], "--labels"),
        (["--part", "0/2"], "--part"),
        (["--dtype", "uint8"], "--dtype"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_that_do_not_apply_are_errors(option: list[str], named: str) -> None:
    said = refused("infer", "ct.nii.gz", "--net", "organs.yaml", "--case", *option)
    assert named in said
    assert "does not apply to whole cases" in said


@pytest.mark.usefixtures("folder")
def test_plan_leads_to_the_dry_run_of_a_case() -> None:
    said = refused("plan", "--net", "organs.yaml", "--volume", "ct.nii.gz")
    assert "znni infer SCAN --net organs.yaml --case --dry-run plans a whole case" in said


@pytest.mark.usefixtures("folder")
def test_to_start_afresh_the_folder_is_deleted() -> None:
    said = refused("infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--no-resume")
    assert "to start afresh, delete the folder OUT.case beside the labels" in said


@pytest.mark.usefixtures("folder")
def test_a_folder_for_labels_leads_to_predict() -> None:
    said = refused("infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--out", "outs")
    assert "for a folder of scans, give znni nnunet predict -i SCANS -o outs" in said


@pytest.mark.usefixtures("folder")
def test_a_folder_above_results_names_them(tmp_path: Path) -> None:
    results = tmp_path / "Dataset001_Organs" / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    results.mkdir(parents=True)
    (results / "plans.json").touch()
    for above in (tmp_path, results.parent):
        said = refused("infer", "ct.nii.gz", "--net", str(above))
        assert f"{above} has no plans.json; give a results folder within it, such as" in said
        assert str(results) in said
        predict = ("nnunet", "predict", "-i", ".", "-o", "labels", "-m", str(above))
        assert f"within it, such as {results}" in refused(*predict)


def test_a_stopped_folder_says_how_to_keep_labels(tmp_path: Path) -> None:
    cases = [Case((tmp_path / "scan.nii",), tmp_path / f"{name}.nii") for name in "abc"]
    cases[0].out.touch()
    with pytest.raises(KeyboardInterrupt) as stopped, _noting_labels(cases):
        raise KeyboardInterrupt
    noted = ["1 of 3 cases have labels, which --continue_prediction keeps"]
    assert stopped.value.__notes__ == noted


def test_a_stopped_case_names_its_folder_alone(tmp_path: Path) -> None:
    case = Case((tmp_path / "scan.nii",), tmp_path / "labels.nii")
    case.folder.mkdir()
    (case.folder / "image.npy").touch()
    stop = KeyboardInterrupt()
    stop.add_note(f"{case.folder / 'labels.h5'} was not made")
    with pytest.raises(KeyboardInterrupt) as stopped, held(case):
        raise stop
    noted = [f"{case.folder} keeps what is finished, and the same command goes on there"]
    assert stopped.value.__notes__ == noted


@pytest.mark.usefixtures("folder")
def test_a_network_without_steps_is_an_error() -> None:
    Path("plain.yaml").write_text(NET.replace("case: {channels: [CT]}\n", ""))
    said = refused("infer", "ct.nii.gz", "--net", "plain.yaml", "--case")
    assert "does not say how whole cases are processed; add labels: and case:" in said


def test_a_results_folder_is_found_as_nnunet_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "nnunet", "predict", "-i", str(tmp_path), "-o", str(tmp_path / "out")
    monkeypatch.delenv("nnUNet_results", raising=False)
    for options, message in (
        (["-d", "3"], "give the network by -d and -c"),
        (["-d", "3", "-c", "3d_fullres"], "environment variable nnUNet_results is not set"),
        (["-m", str(tmp_path)], "plans.json: No such file or directory"),
    ):
        assert message in refused(*line, *options)
    monkeypatch.setenv("nnUNet_results", str(tmp_path))
    results = tmp_path / "Dataset003_Liver" / "nnUNetTrainer__nnUNetPlans__3d_lowres"
    results.mkdir(parents=True)
    for options, message in (
        (["-d", "4", "-c", "3d_fullres"], "has Dataset003_Liver; give one of them"),
        (["-d", "3", "-c", "3d_fullres"], "has nnUNetTrainer__nnUNetPlans__3d_lowres"),
        (["-d", "3", "-c", "3d_lowres"], "plans.json: No such file or directory"),
        (["-d", "Dataset003_Liver", "-c", "3d_lowres"], "plans.json: No such file"),
    ):
        assert message in refused(*line, *options)


OPTIONS_OF_NNUNET = (
    "-h --help -i -o -d -p -tr -c -f -step_size --disable_tta --verbose --save_probabilities "
    "--continue_prediction -chk -npp -nps -prev_stage_predictions -num_parts -part_id -device "
    "--disable_progress_bar --not_on_device"
)


def test_every_option_of_nnunet_is_taken() -> None:
    said = succeeds("nnunet", "predict", "--help")
    options = re.findall(r"(?<![\w-])-[-\w]+", said)
    assert set(OPTIONS_OF_NNUNET.split()) <= set(options)


def test_defaults_of_nnunet_that_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("nnUNet_npp", "many")
    said = refused("nnunet", "predict", "-i", ".", "-o", "out")
    assert "(env var: 'nnUNet_npp'): 'many' is not an integer" in said


@pytest.mark.usefixtures("folder")
def test_the_calls_of_python_do_the_same() -> None:
    scan_of = ["ct.nii.gz"]
    assert not znni.is_whole_case("organs.yaml")  # it may also be run over a volume
    found = znni.plan_case(scan_of, "organs.yaml", "by-call.nii.gz", device="cpu")
    assert set(found.memory) == set(found.between) == set(STEPS) - {"all"}
    (plan,) = found.plans
    assert plan.band is not None
    assert found.between["network"] == plan.band.limits(plan.seconds)
    told: list[str] = []
    report = znni.infer_case(
        scan_of, "organs.yaml", "by-call.nii.gz", device="cpu",
        progress=lambda step, _done, _total: told.append(step),
    )  # fmt: skip
    assert report.out == Path("by-call.nii.gz")
    assert {"network", "writing"} <= set(told)
    succeeds(
        *("infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--device", "cpu"),
        *("--out", "by-command.nii.gz"),
    )
    one, other = (nibabel.load(f"by-{how}.nii.gz") for how in ("call", "command"))
    assert np.array_equal(np.asarray(one.dataobj), np.asarray(other.dataobj))
    with pytest.raises(znni.ZnniError, match="exists; give overwrite=True"):
        znni.plan_case(scan_of, "organs.yaml", "by-call.nii.gz")
