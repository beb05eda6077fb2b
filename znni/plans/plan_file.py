"""Plans as JSON files, so that a plan made once can run again."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.plans.plan import Plan


def load_plan(path: str | Path) -> Plan:
    """Read a plan from a file.

    Raises:
        InvalidInput: there is no such file, or it is not a plan.
    """
    if not isinstance(path, str | PathLike):
        kind = type(path).__name__
        raise InvalidInput(f"the plan is {path!r}, a {kind}; give a plan or its file")
    try:
        return Plan.from_json(Path(path).read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read: {error.strerror}; check the path, or {PLAN_AGAIN}"
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def save_plans(path: Path, plans: Sequence[Plan], *, overwrite: bool = False) -> None:
    """Write the first plan to the path, and the others beside it with their ranks in their names.

    Args:
        path: the path of the first plan's file.
        plans: the plans to write.
        overwrite: whether existing plans are replaced.

    Raises:
        InvalidInput: a file cannot be written, already exists, or is not a plan.
    """
    files = [
        path if rank == 1 else path.with_stem(f"{path.stem}-{rank}")
        for rank in range(1, len(plans) + 1)
    ]
    for file in filter(Path.exists, files):
        if not overwrite:
            raise InvalidInput(
                f"{file}: exists; write elsewhere, or give {option('overwrite', True)}"
            )
        load_plan(file)  # only a plan may be replaced
    for file, plan in zip(files, plans, strict=True):
        try:
            file.write_text(plan.to_json(), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"{file}: cannot be written: {error.strerror}; write elsewhere"
            ) from None
