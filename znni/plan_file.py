"""Plans as files of JSON, so that a plan made once runs again."""

from __future__ import annotations

from pathlib import Path

from znni.errors import PLAN_AGAIN, InvalidInput, option
from znni.plans import Plan


def load_plan(path: Path) -> Plan:
    """Read a plan that was saved.

    Raises:
        InvalidInput: no such file, or not a plan.
    """
    try:
        return Plan.from_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read: {error.strerror}; check the path, or {PLAN_AGAIN}"
        ) from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def save_plan(path: Path, plan: Plan, *, overwrite: bool = False) -> None:
    """Write a plan.

    Args:
        path: of the file.
        plan: what is written.
        overwrite: replace a plan that is there.

    Raises:
        InvalidInput: the file cannot be written, is there already, or is no plan.
    """
    if path.exists():
        if not overwrite:
            raise InvalidInput(
                f"{path}: exists; write elsewhere, or give {option('overwrite', True)}"
            )
        load_plan(path)  # nothing but a plan is replaced
    try:
        path.write_text(plan.to_json(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be written: {error.strerror}; write elsewhere"
        ) from None
