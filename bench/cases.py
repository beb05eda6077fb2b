"""Whole cases of nnU-Net, from scans to labels: by nnU-Net's own predictor, and by znni."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from bench.nnunet import timed_command
from bench.peers.nnunet_cases import BY_NAME, Case, Stage
from bench.record import Row
from bench.session import (
    Folder,
    Out,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    report_all,
)
from znni.core.errors import InvalidInput

ROOT = Path(__file__).parents[1]
EXPECTED = {"float32": "expected-float32", "as it is": "expected"}  # nnU-Net's sums
COMMAND = "from nnunetv2.inference.predict_from_raw_data import predict_entry_point as run; run()"

Python = Annotated[Path, typer.Option(help="The Python of an environment with nnU-Net 2.8.")]
Names = Annotated[list[str] | None, typer.Option("--case", help="A case; repeatable.")]
Ours = Annotated[
    Path | None,
    typer.Option(help="Judge the labels in this folder's CASE folders; do not run znni."),
]
Probabilities = Annotated[bool, typer.Option(help="Have znni save probabilities.")]
Timed = Annotated[bool, typer.Option(help="Time nnU-Net's command too.")]


def cases_command(
    *,
    python: Python,
    case: Names = None,
    folder: Folder = None,
    ours: Ours = None,
    probabilities: Probabilities = False,
    timed: Timed = False,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare labels and probabilities of whole cases with nnU-Net's, and the time that each takes.

    Cases that the folder has are not made again.
    """
    check_known("case", case or (), BY_NAME)
    chosen = [BY_NAME[name] for name in case or BY_NAME]
    cores = machine_with("cpu", threads).host.threads
    rows = []
    with nullcontext(folder) if folder else TemporaryDirectory() as place:
        runs = _Runs(python, Path(place).resolve(), ours, cores, probabilities=probabilities)
        for each in chosen:
            progress(f"{each.name}: {each.shows}")
            rows += runs.rows(each, timed=timed)
    report_all("cases", [rows], [ceilings_with("cpu", cores)], out)


class _Runs:
    """Runs of nnU-Net and of znni over the cases of a folder.

    Args:
        python: nnU-Net's.
        folder: of the cases.
        ours: labels that znni made, or None to make them.
        cores: threads of each run.
        probabilities: whether znni saves them.
    """

    def __init__(
        self, python: Path, folder: Path, ours: Path | None, cores: int, *, probabilities: bool
    ) -> None:
        self._python, self._folder, self._ours, self._cores = python, folder, ours, cores
        self._probabilities = probabilities

    def make(self, case: Case) -> None:
        """Have nnU-Net save a case and predict it, unless it is there."""
        at = self._folder / case.name
        if not (at / "model").exists():
            self._peer("folders", str(self._folder), case.name)
        if not (at / EXPECTED["float32"]).exists():
            self._peer("predict", str(self._folder), case.name)

    def rows(self, case: Case, *, timed: bool) -> list[Row]:
        """Return a row for each scan of each stage."""
        self.make(case)
        rows: list[Row] = []
        for stage in case.stages:
            about: Row = {"name": case.name, "configuration": stage.name}
            if timed:
                about |= _took("nnunet_", self._nnunet(case, stage))
            if self._ours is None:
                ours = self._folder / case.name / "znni" / stage.name
                shutil.rmtree(ours, ignore_errors=True)
                try:
                    about |= _took("", self._znni(case, stage, ours))
                except InvalidInput as error:  # the labels that it wrote are judged nonetheless
                    progress(f"znni: {error}")
            else:
                ours = self._ours / case.name
            rows += [about | row for row in self._compared(case, stage, ours)]
        return rows

    def _compared(self, case: Case, stage: Stage, ours: Path) -> list[Row]:
        at = self._folder / case.name
        (model,) = (at / "results").glob(f"*/*__{stage.name}")
        sub = "" if stage is case.stages[-1] else stage.name
        if case.postprocessing:
            sub = "postprocessed"
        found = {
            sums: json.loads(self._peer("compare", str(model), str(at / name / sub), str(ours)))
            for sums, name in EXPECTED.items()
        }
        for row, shipped in zip(found["float32"], found["as it is"], strict=True):
            row["apart_from_float16"] = shipped.get("labels_apart")
        return list(found["float32"])

    def _znni(self, case: Case, stage: Stage, out: Path) -> tuple[float, int]:
        removed = self._folder / case.name / "model" / "postprocessing.pkl"
        return self._run(
            [sys.executable, "-m", "znni", "nnunet", "predict"], case, stage, out,
            *["--save_probabilities"] * self._probabilities,
            *(["-pp_pkl_file", str(removed)] if case.postprocessing else []),
        )  # fmt: skip

    def _nnunet(self, case: Case, stage: Stage) -> tuple[float, int]:
        with TemporaryDirectory() as place:
            begun = [str(self._python), "-c", COMMAND]
            return self._run(begun, case, stage, Path(place))

    def _run(
        self, begun: list[str], case: Case, stage: Stage, out: Path, *further: str
    ) -> tuple[float, int]:
        at = self._folder / case.name
        earlier = at / EXPECTED["float32"] / stage.previous
        command = [
            *begun, "-i", str(at / "input"), "-o", str(out), "-d", "1", "-c", stage.name,
            "-f", *map(str, case.folds), "-device", "cpu", *case.options, *further,
            *(["-prev_stage_predictions", str(earlier)] if stage.previous else []),
        ]  # fmt: skip
        return timed_command(command, self._environment(at))

    def _peer(self, module: str, *arguments: str) -> str:
        command = [str(self._python), "-m", f"bench.peers.nnunet_{module}", *arguments]
        ran = subprocess.run(
            command, cwd=ROOT, env=self._environment(self._folder), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if ran.returncode:
            raise InvalidInput(f"{' '.join(command)} failed: {ran.stderr[-500:]}")
        return ran.stdout

    def _environment(self, folder: Path) -> Mapping[str, str]:
        places = {f"nnUNet_{name}": str(folder / name) for name in ("raw", "preprocessed")}
        return os.environ | places | {
            "nnUNet_results": str(folder / "results"), "nnUNet_compile": "f",
            "OMP_NUM_THREADS": str(self._cores), "PYTHONPATH": str(ROOT),
        }  # fmt: skip


def _took(prefix: str, run: tuple[float, int]) -> dict[str, Any]:
    seconds, peak = run
    return {f"{prefix}seconds": seconds, f"{prefix}peak_gib": peak / 2**30}
