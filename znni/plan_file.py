"""Plans as files of JSON, so that a plan made once runs again."""

from __future__ import annotations

from pathlib import Path

from znni.errors import PLAN_AGAIN, InvalidInput
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


def save_plan(path: Path, plan: Plan) -> None:
    """Write a plan.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        path.write_text(plan.to_json(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be written: {error.strerror}; write elsewhere"
        ) from None
