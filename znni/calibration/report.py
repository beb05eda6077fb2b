"""What is known of each primitive, as the text that a calibration prints."""

from __future__ import annotations

from collections.abc import Iterable

from znni.calibration.model import Fitted
from znni.text_table import aligned

HEADER = ("primitive", "measurements", "error", "error of the built-in model")


def calibration_table(known: Iterable[Fitted]) -> str:
    """A row for each primitive; a dash where nothing was measured of it."""
    rows = [
        (
            fitted.primitive,
            f"{fitted.measurements}",
            _share(fitted.error),
            _share(fitted.built_in_error),
        )
        for fitted in known
    ]
    return "\n".join(aligned([HEADER, *rows], left=1))


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.0%}"
