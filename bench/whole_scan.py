"""A scan from its file to its labels: seconds and memory of znni, and of nnU-Net's own command.

Without an environment with nnU-Net, znni runs alone, over networks that this command makes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import typer
from numpy.typing import NDArray

from bench.case_networks import save_set
from bench.nnunet import timed_command
from bench.peers.nnunet_cases import FULL_WINDOW, Case, scan_case
from bench.peers.nnunet_folders import plans_of
from bench.record import Row
from bench.session import (
    Device,
    Folder,
    Out,
    Repeats,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    report_all,
)
from znni.core.errors import InvalidInput
from znni.core.processors import DeviceKind

Run: TypeAlias = tuple[float, int]

ROOT = Path(__file__).parents[1]
COARSE = 8  # voxels of a synthetic scan for each sample of its structures
AIR, TISSUE = -1024, 40  # Hounsfield units
DEFAULT, TORCH = PEERS = ("default", "torch")  # nnU-Net's resampling

Python = Annotated[
    Path | None,
    typer.Option(help="The Python of an environment with nnU-Net 2.8. Default: znni runs alone."),
]
Scans = Annotated[Path | None, typer.Option("--scan", help="A CT in NIfTI. Default: synthetic.")]
Extents = Annotated[
    list[int], typer.Option("--size", min=1, help="Voxels of a synthetic scan: z, y and x.")
]
Voxels = Annotated[
    list[float], typer.Option("--voxel", help="Millimetres of a synthetic scan: z, y and x.")
]
Classes = Annotated[int, typer.Option(min=2, help="Classes of each network.")]
Networks = Annotated[int, typer.Option(min=1, help="Networks over the scan, one by one.")]
Window = Annotated[
    int,
    typer.Option(
        min=32, help=f"Voxels per axis; from {FULL_WINDOW} on, networks have 32 to 320 maps."
    ),
]
Cases = Annotated[
    int, typer.Option(min=1, help="Also run over so many copies of the scan, in one command.")
]
FastPython = Annotated[
    Path | None,
    typer.Option("--fast", help="The Python of an environment with FastSegmentator 0.1, for GPUs."),
]
Resamplings = Annotated[
    list[str] | None,
    typer.Option("--peer", help="default or torch: nnU-Net's resampling; repeatable."),
]


def whole_scan_command(
    *,
    python: Python = None,
    scan: Scans = None,
    size: Extents = [530, 512, 512],  # noqa: B006 - typer reads it
    voxel: Voxels = [1.0, 0.75, 0.75],  # noqa: B006 - typer reads it
    classes: Classes = 25,
    networks: Networks = 1,
    window: Window = 64,
    cases: Cases = 1,
    device: Device = "cpu",
    peer: Resamplings = None,
    fast: FastPython = None,
    repeats: Repeats = 1,
    threads: Threads = None,
    folder: Folder = None,
    out: Out = None,
) -> None:
    """Time a whole scan from its file to its labels, by znni and by nnU-Net's own command.

    nnU-Net runs with its default resampling and with PyTorch's. FastSegmentator runs over the same
    results folder. Networks have seeded weights, as nnU-Net's trainer saves them.
    """
    cores = machine_with("cpu", threads).host.threads
    with nullcontext(folder) if folder else TemporaryDirectory() as place:
        at = Path(place).resolve()
        if scan is None:
            scan = at / "scan.nii.gz"
            if not scan.exists():
                progress("making a scan")
                save_synthetic(scan, size, voxel)
        check_known("peer", peer or (), PEERS)
        asked = Asked(at, scan, networks, classes, window, device, repeats)
        if python is None:
            rows = [_alone(asked)]
        else:
            rows = _beside_peers(asked, python, cores, cases, peer or PEERS, fast)
    report_all("whole-scan", [rows], [ceilings_with(device, cores)], out)


class Asked(NamedTuple):
    """The networks, the scan and the device that are asked for.

    Attributes:
        folder: the folder of all files that are made.
        scan: the scan's file.
        networks: the number of networks.
        classes: the classes of each.
        window: the voxels of a window, for each axis.
        device: where networks run.
        repeats: the timed runs of each row.
    """

    folder: Path
    scan: Path
    networks: int
    classes: int
    window: int
    device: DeviceKind
    repeats: int


def _beside_peers(
    asked: Asked,
    python: Path,
    cores: int,
    cases: int,
    peers: Collection[str],
    fast: Path | None,
) -> list[Row]:
    """Return the rows of znni and its peers, over networks that nnU-Net's trainer saves."""
    rows = []
    for name in PEERS:
        case = scan_case(
            asked.classes, torch=name == TORCH, networks=asked.networks, window=asked.window
        )
        runs = _Runs(python, asked.folder / case.name, case, asked.device, cores)
        runs.make(asked.scan.resolve(), asked.window)
        peer = name if name in peers else None
        rows += runs.rows(cases, asked.repeats, own=name == DEFAULT, peer=peer)
        if fast and name == DEFAULT:
            rows.append(runs.row_of_fast(fast, asked.repeats))
    return rows


def _alone(asked: Asked) -> Row:
    """Return the row of znni's runs over networks that need no nnU-Net. The first run is apart."""
    folder, scan, networks, classes, window, device, repeats = asked
    wide, out = window >= FULL_WINDOW, folder / "labels.nii.gz"
    found = save_set(folder, networks, classes, window, wide=wide)
    command = [
        sys.executable, "-m", "znni", "infer", str(scan), "--net", str(found), "--out", str(out),
        "--device", device, "--overwrite",
    ]  # fmt: skip
    progress("znni")
    first = _with_empty_cache(folder, lambda: timed_command(command, _environment(folder)))
    runs = [timed_command(command, _environment(folder)) for _ in range(repeats)]
    return _row("znni", device, classes, networks, 1, runs, [first])


def _with_empty_cache(folder: Path, run: Callable[[], Run]) -> Run:
    """Run znni as if for the first time: without the cache that earlier runs left."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return run()


def _row(
    name: str,
    device: str,
    classes: int,
    networks: int,
    cases: int,
    runs: Sequence[Run],
    first: Sequence[Run] = (),
) -> Row:
    """Return the row of some runs, and of one before them that had an empty cache."""
    seconds = sorted(seconds for seconds, _ in runs)
    row = {
        "name": name,
        "device": device,
        "classes": classes,
        "networks": networks,
        "cases": cases,
        "rounds": len(runs),
        "seconds": seconds[len(seconds) // 2],
        "peak_gib": max(peak for _, peak in runs) / 2**30,
    }
    if first:  # kernels are compiled, by processes side by side
        row |= {"first_seconds": first[0][0], "first_peak_gib": first[0][1] / 2**30}
    return row


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a run whose cache lies in a folder."""
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    return os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}


class _Runs:
    """Runs of znni and of nnU-Net with one results folder.

    Args:
        python: nnU-Net's.
        folder: the folder of the case.
        case: the case.
        device: where networks run.
        cores: threads of each run.
    """

    def __init__(self, python: Path, folder: Path, case: Case, device: str, cores: int) -> None:
        self._python, self._folder, self._case = python, folder, case
        self._device, self._cores = device, cores

    def make(self, scan: Path, window: int) -> None:
        """Have nnU-Net's trainer save the networks, unless they are there."""
        model, case = self._folder / "model", self._case
        if model.exists():
            return
        default = self._folder.with_name(self._folder.name.removesuffix(f"-{TORCH}"))
        if default != self._folder and default.exists():  # only the plans are others
            shutil.copytree(default, self._folder, symlinks=True)
            (model / "plans.json").write_text(json.dumps(plans_of(case), indent=1))
            return
        progress(f"making {case.name}")
        command = [
            str(self._python), "-m", "bench.peers.nnunet_folders", str(self._folder.parent),
            "--scan", str(scan), "--classes", str(len(case.labels or ())),
            "--networks", str(len(case.folds)), "--window", str(window),
            *["--torch"] * bool(case.resampling),
        ]  # fmt: skip
        ran = subprocess.run(
            command, cwd=ROOT, env=self._environment(), capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise InvalidInput(f"{' '.join(command)} failed: {ran.stderr[-500:]}")

    def rows(self, cases: int, repeats: int, *, own: bool, peer: str | None) -> list[Row]:
        """Return rows of znni's runs, if asked for, and of nnU-Net's."""
        rows: list[Row] = []
        for count in sorted({1, cases}):
            inputs = self._inputs(count)
            if own:
                znni = partial(self._znni, inputs)
                first = [_with_empty_cache(self._folder, znni)] if count == 1 else []
                runs = [znni() for _ in range(repeats)]
                rows.append(self._row("znni", count, runs, first))
            if peer:
                name = f"nnU-Net, {peer} resampling"
                runs = [self._nnunet(inputs) for _ in range(repeats)]
                rows.append(self._row(name, count, runs) | (self._apart() if own else {}))
        return rows

    def row_of_fast(self, python: Path, repeats: int) -> Row:
        """Return the row of FastSegmentator's runs, one for each network."""
        inputs, model = self._inputs(1), (self._folder / "model").resolve()

        def run() -> Run:
            taken = []
            for fold in self._case.folds:
                command = [
                    str(python), "-m", "fastsegmentator.nnunet_infer_nii", "-i", str(inputs),
                    "-o", str(self._empty("fast")), "--model_path", str(model),
                    "--fold", str(fold), "--device", self._torch_device,
                ]  # fmt: skip
                progress(f"FastSegmentator, network {fold}")
                taken.append(timed_command(command, self._environment()))
            return sum(seconds for seconds, _ in taken), max(peak for _, peak in taken)

        return self._row("FastSegmentator", 1, [run() for _ in range(repeats)])

    def _row(self, name: str, count: int, runs: Sequence[Run], first: Sequence[Run] = ()) -> Row:
        classes, networks = len(self._case.labels or ()), len(self._case.folds)
        return _row(name, self._device, classes, networks, count, runs, first)

    def _inputs(self, count: int) -> Path:
        """Return a folder with so many copies of the scan."""
        found = self._folder / f"input-{count}"
        (scan,) = (self._folder / "input").iterdir()
        if not found.exists():
            found.mkdir()
            for number in range(count):
                os.link(scan, found / f"case{number}_0000.nii.gz")
        return found

    def _znni(self, inputs: Path) -> Run:
        models = [f"-m{self._results_of(fold)}" for fold in self._case.folds]
        command = [
            sys.executable, "-m", "znni", "nnunet", "predict", "-i", str(inputs),
            "-o", str(self._empty("znni")), *models, "-device", self._torch_device,
            "--disable_tta",
        ]  # fmt: skip
        progress(f"znni over {inputs.name}")
        return timed_command(command, self._environment())

    def _results_of(self, fold: int) -> Path:
        """Return a results folder with one fold, whose labels have names of their own."""
        model, made = (self._folder / "model").resolve(), self._folder / "networks" / str(fold)
        if not made.exists():
            made.mkdir(parents=True)
            shutil.copy(model / "plans.json", made)
            dataset = json.loads((model / "dataset.json").read_text())
            named = {
                f"{name}{fold}" * bool(label) or name: label
                for name, label in dataset["labels"].items()
            }
            (made / "dataset.json").write_text(json.dumps(dataset | {"labels": named}))
            (made / "fold_0").symlink_to(model / f"fold_{fold}")
        return made

    def _nnunet(self, inputs: Path) -> Run:
        command = [
            str(self._python), "-m", "bench.peers.nnunet_several", str(inputs),
            str(self._empty("nnunet")), str((self._folder / "model").resolve()),
            *map(str, self._case.folds), "--device", self._torch_device,
        ]  # fmt: skip
        progress(f"nnU-Net over {inputs.name}")
        return timed_command(command, self._environment())

    @property
    def _torch_device(self) -> str:
        return {"gpu": "cuda"}.get(self._device, self._device)

    def _empty(self, name: str) -> Path:
        found = self._folder / name
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        return found

    def _apart(self) -> dict[str, Any]:
        """Return the share of voxels whose labels differ, if there is one network."""
        if len(self._case.folds) > 1:
            return {}
        (theirs,) = (self._folder / "nnunet").glob("*/case0.nii.gz")
        ours = self._folder / "znni" / "case0.nii.gz"
        return {"labels_apart": float(np.mean(_labels(ours) != _labels(theirs)))}

    def _environment(self) -> dict[str, str]:
        places = ("raw", "preprocessed", "results")
        return _environment(self._folder) | {
            **{f"nnUNet_{name}": str(self._folder) for name in places},
            "nnUNet_compile": "f",
            "OMP_NUM_THREADS": str(self._cores),
        }


def save_synthetic(path: Path, extents: Sequence[int], voxel: Sequence[float]) -> None:
    """Save smooth structures and noise in an ellipse, with air around it, as a CT in int16."""
    import nibabel

    random = np.random.default_rng(0)
    coarse = random.standard_normal([extent // COARSE + 2 for extent in extents], np.float32)
    _, rows, columns = (np.linspace(-1, 1, extent, dtype=np.float32) for extent in extents)
    inside = (rows[:, None] / 0.8) ** 2 + (columns / 0.9) ** 2 < 1
    image = np.empty(extents, np.int16)
    for z, at in enumerate(np.arange(extents[0]) / COARSE):
        plane, share = int(at), np.float32(at % 1)
        smooth = (1 - share) * coarse[plane] + share * coarse[plane + 1]
        values = TISSUE + 300 * _stretched(smooth, extents[1:])
        values += 15 * random.standard_normal(values.shape, np.float32)
        image[z] = np.where(inside, values, AIR)
    affine = np.diag([*reversed(voxel), 1])
    nibabel.save(nibabel.Nifti1Image(image.T, affine), path)


def _stretched(plane: NDArray[np.float32], extents: Sequence[int]) -> NDArray[np.float32]:
    """Return a plane with samples between its own, by lines along both axes."""
    for axis, extent in enumerate(extents):
        at = np.arange(extent) / COARSE
        before = at.astype(int)
        share = (at - before).astype(np.float32).reshape((-1, 1) if axis == 0 else (1, -1))
        plane = (1 - share) * plane.take(before, axis) + share * plane.take(before + 1, axis)
    return plane


def _labels(path: Path) -> NDArray[Any]:
    import nibabel

    return np.asarray(nibabel.load(path).dataobj)
