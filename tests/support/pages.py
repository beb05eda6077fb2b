"""Pages made by ``znni view``, read back."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


def picture(content: bytes) -> NDArray[Any]:
    """Return a PNG as bytes (rows, columns) or (rows, columns, colours)."""
    image = pytest.importorskip("matplotlib.image")
    return np.rint(np.asarray(image.imread(BytesIO(content), "png")) * 255).astype(np.uint8)


def read_page(path: str) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Return the content of a page: its data, and its volumes.

    A volume holds shades of grey, or numbers of labels.
    """
    text = Path(path).read_text()
    found = re.search(r"const data = (\{.*\});", text)
    assert found
    data = json.loads(found[1])
    depth, height, width = data["size"]
    volumes = []
    for encoded in re.findall(r'src="data:image/png;base64,([^"]*)"', text):
        grid = picture(b64decode(encoded))
        planes = [
            grid[row : row + height, column : column + width]
            for row in range(0, grid.shape[0], height)
            for column in range(0, grid.shape[1], width)
        ]
        found = np.array(planes[:depth])
        volumes.append(found if found.ndim == 3 else found.astype(int) @ (1, 256, 65536))
    return data, volumes
