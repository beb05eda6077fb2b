"""Plans as files of JSON, so that a plan made once runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from znni.core.errors import PLAN_AGAIN, InvalidInput, option
from znni.plans.plan import Plan


def load_plan(path: str | Path) -> Plan:
    """Read a plan that was saved.

    Raises:
        InvalidInput: no such file, or not a plan.
    """
    try:
        return Plan.from_json(Path(path).read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read: {error.strerror}; check the path, or {PLAN_AGAIN}"
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def save_plans(path: Path, plans: Sequence[Plan], *, overwrite: bool = False) -> None:
    """Write plans: the first to the path, the others beside it, with their ranks in their names.

    Args:
        path: of the first one's file.
        plans: what is written.
        overwrite: replace plans that are there.

    Raises:
        InvalidInput: a file cannot be written, is there already, or is no plan.
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
        load_plan(file)  # nothing but a plan is replaced
    for file, plan in zip(files, plans, strict=True):
        try:
            file.write_text(plan.to_json(), encoding="utf-8")
        except OSError as error:
            raise InvalidInput(
                f"{file}: cannot be written: {error.strerror}; write elsewhere"
            ) from None
