"""The JSON file beside a TIFF, in which nnU-Net notes the extents of its voxels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from znni.core.errors import InvalidInput
from znni.core.logged import warn_once
from znni.core.volume import Point

CHANNEL = re.compile(r"_\d{4}$")  # the end of the name of a channel's file

_Extent = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Content(BaseModel):
    spacing: tuple[_Extent, _Extent, _Extent]


def spacing_file(scan: Path) -> Path:
    """Return the JSON file of a scan: ``NAME.json`` of ``NAME_0000.tif``."""
    return scan.with_name(f"{CHANNEL.sub('', scan.stem)}.json")


def read_spacing(scan: Path) -> Point:
    """Return the extents (z, y, x) of a scan's voxels; 1 if there is no file, as in nnU-Net."""
    path = spacing_file(scan)
    try:
        return _Content.model_validate_json(path.read_bytes()).spacing
    except FileNotFoundError:
        warn_once(f"{path}: there is no such file, so voxels of 1, 1, 1 are taken, as in nnU-Net")
        return 1.0, 1.0, 1.0
    except (OSError, ValidationError):
        raise InvalidInput(
            f'{path}: cannot be read as nnU-Net writes it; write {{"spacing": [3, 1, 1]}} (z, y, x)'
        ) from None


def write_spacing(labels: Path, spacing: Point) -> None:
    """Write the JSON file of labels, whose name is the name of the case."""
    labels.with_suffix(".json").write_text(json.dumps({"spacing": spacing}))
