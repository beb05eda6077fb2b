"""Results folders of nnU-Net 2: where a trained network's plans and checkpoints lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.logged import warn_once

PLANS, DATASET = "plans.json", "dataset.json"
CHECKPOINT = "checkpoint_final.pth"


@dataclass(frozen=True)
class Results:
    """A part of a results folder.

    Attributes:
        path: the folder with ``plans.json``, for all its folds, or one of its folds, or the
            checkpoint of one.
        folds: the names of the folds, such as ``0`` and ``all``; empty: all numbered ones.
        checkpoint: the name of the file of each fold.
    """

    path: Path
    folds: tuple[str, ...] = ()
    checkpoint: str = CHECKPOINT

    @property
    def place(self) -> Path:
        """The results folder."""
        return _results_of(self.path) or self.path

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints of the folds.

        Raises:
            InvalidInput: one is missing.
        """
        path, name = self.path, self.checkpoint
        if path.is_file():
            return [path.resolve()]
        if (path / name).is_file():
            return [path.resolve() / name]
        if self.folds:
            checkpoints = [path / f"fold_{fold}" / name for fold in self.folds]
            if missing := [file for file in checkpoints if not file.is_file()]:
                folders = sorted(file.parent.name for file in path.glob(f"fold_*/{name}"))
                there = ", ".join(folder.removeprefix("fold_") for folder in folders)
                raise InvalidInput(
                    f"{path} has no {missing[0].relative_to(path)}; its folds are {there or 'none'}"
                )
            return checkpoints
        checkpoints = sorted(path.glob(f"fold_*/{name}"))
        numbered = [each for each in checkpoints if each.parent.name != "fold_all"]
        for folder in sorted(path.glob("fold_[0-9]*")):
            if numbered and not (folder / name).is_file():
                warn_once(f"{folder} has no {name}, and is left out: the others are averaged")
        if not checkpoints:
            raise InvalidInput(
                f"{path} has no {name}, which a finished training writes; finish one, or give the "
                f"file of another checkpoint, such as fold_0/checkpoint_best.pth"
            )
        return numbered or checkpoints


def is_results(path: Path) -> bool:
    """Return whether a path is a folder of nnU-Net's results, one of its folds or a checkpoint."""
    return _results_of(path) is not None


def check_holds_no_results(folder: Path) -> None:
    """Check that a folder, which has no results of nnU-Net itself, has no folders of results.

    Raises:
        InvalidInput: it has some, as ``nnUNet_results`` has; the error names them.
    """
    within = sorted(
        file.parent for level in ("*", "*/*") for file in folder.glob(f"{level}/{PLANS}")
    )
    if within:
        others = f" (there are {len(within)})" if len(within) > 1 else ""
        raise InvalidInput(
            f"{folder} has no {PLANS}; give a results folder within it, such as {within[0]}{others}"
        )


def _results_of(path: Path) -> Path | None:
    """Return the results folder that a folder, a fold or a checkpoint belongs to."""
    if path.is_file() and path.suffix != Path(CHECKPOINT).suffix:
        return None
    folder = path.resolve().parent if path.is_file() else path.resolve()
    is_fold = path.is_file() or any(folder.glob(f"*{Path(CHECKPOINT).suffix}"))
    places = (folder, folder.parent) if is_fold else (folder,)
    return next((each for each in places if (each / PLANS).is_file()), None)
