"""Draw a few slices of a volume, of its boundary map, and of the map over the volume.

    python networks/demo_picture.py INPUT.h5 OUTPUT.h5 PICTURE.png

The input file holds one 3D dataset. The output file holds ``/main`` (f, z, y, x), and its first map
is drawn. A map that is smaller than its volume lies in the middle (border mode ``valid``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read_volume(path: Path) -> NDArray[np.generic]:
    """Return the only 3D dataset of an HDF5 file.

    Raises:
        SystemExit: the file has no 3D dataset, or more than one.
    """
    found: dict[str, NDArray[np.generic]] = {}

    def keep(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 3:
            found[name] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    if len(found) != 1:
        raise SystemExit(f"{path}: needs one 3D dataset, has {sorted(found)}")
    return found.popitem()[1]


def read_boundaries(path: Path) -> NDArray[np.float32]:
    """Return the first map of ``/main``.

    Raises:
        SystemExit: the dataset is missing, or it is not (f, z, y, x).
    """
    with h5py.File(path, "r") as file:
        main = file.get("main")
        if not isinstance(main, h5py.Dataset) or main.ndim != 4:
            raise SystemExit(f"{path}: needs a dataset /main of (f, z, y, x); has {list(file)}")
        boundaries: NDArray[np.float32] = main[0]
    return boundaries


def draw(volume: NDArray[np.generic], boundaries: NDArray[np.float32], picture: Path) -> None:
    """Write a PNG with three sections and one cut along z as rows.

    The columns are the volume, the map and both.
    """
    margins = [(n - m) // 2 for n, m in zip(volume.shape, boundaries.shape, strict=True)]
    middle = tuple(slice(a, a + m) for a, m in zip(margins, boundaries.shape, strict=True))
    volume = volume[middle]
    depth, height, _ = volume.shape
    cuts = [(f"z = {z + margins[0]}", np.s_[z]) for z in (depth // 6, depth // 2, 5 * depth // 6)]
    cuts.append((f"y = {height // 2 + margins[1]} (z downwards)", np.s_[:, height // 2]))
    figure, axes = plt.subplots(
        len(cuts),
        3,
        figsize=(12, 4 * sum(volume[cut].shape[0] / volume[cut].shape[1] for _, cut in cuts)),
        height_ratios=[volume[cut].shape[0] / volume[cut].shape[1] for _, cut in cuts],
        layout="constrained",
        squeeze=False,
    )
    grey = {"cmap": "gray", "vmin": volume.min(), "vmax": volume.max()}
    for row, (name, cut) in zip(axes, cuts, strict=True):
        row[0].imshow(volume[cut], **grey)
        row[1].imshow(boundaries[cut], cmap="magma", vmin=0, vmax=1)
        row[2].imshow(volume[cut], **grey)
        row[2].imshow(_tint(boundaries[cut]))
        row[0].set_ylabel(name)
        for panel in row:
            panel.set(xticks=[], yticks=[])
    for panel, title in zip(axes[0], ("input", "boundary probability", "both"), strict=True):
        panel.set_title(title)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=100)
    plt.close(figure)


def _tint(boundaries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return red as RGBA (y, x, 4); its opacity follows probabilities above one half."""
    tint = np.zeros((*boundaries.shape, 4), np.float32)
    tint[..., 0] = 1
    tint[..., 3] = 0.8 * np.clip(2 * boundaries - 1, 0, 1)
    return tint


def main() -> None:
    """Read the files named on the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("input", type=Path, help="HDF5 file with the volume")
    parser.add_argument("output", type=Path, help="HDF5 file that znni infer wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    draw(read_volume(arguments.input), read_boundaries(arguments.output), arguments.picture)


if __name__ == "__main__":
    main()
