"""Draw a few slices of a volume, of the maps that a network gives, and of the maps over the volume.

    python networks/demo_picture.py INPUT.h5 OUTPUT.h5 PICTURE.png

The input file holds one 3D dataset. The output file holds ``/main`` (f, z, y, x). Maps that are
smaller than their volume lie in its middle (border mode ``valid``).
"""

from __future__ import annotations

import argparse
from itertools import cycle
from pathlib import Path

import h5py
import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from znni.network.network_file import load_network

COLOURS = ((1, 0, 0), (0.2, 0.5, 1), (1, 0.9, 0))  # of membrane, cytoplasm and organelles


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


def read_maps(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the maps of ``/main`` by their names in the network that made them.

    Raises:
        SystemExit: the dataset is missing, or it is not (f, z, y, x).
    """
    with h5py.File(path, "r") as file:
        main = file.get("main")
        if not isinstance(main, h5py.Dataset) or main.ndim != 4:
            raise SystemExit(f"{path}: needs a dataset /main of (f, z, y, x); has {list(file)}")
        names = [name for name, _ in load_network(main.attrs["network"]).labels]
        return dict(zip(names or ["membrane"], main[()], strict=True))


def draw(volume: NDArray[np.generic], maps: dict[str, NDArray[np.float32]], picture: Path) -> None:
    """Write a PNG with three sections and one cut along z as rows.

    The columns are the volume, each map, and the maps over the volume.
    """
    shape = next(iter(maps.values())).shape
    margins = [(n - m) // 2 for n, m in zip(volume.shape, shape, strict=True)]
    volume = volume[tuple(slice(a, a + m) for a, m in zip(margins, shape, strict=True))]
    depth, height, _ = shape
    cuts = [(f"z = {z + margins[0]}", np.s_[z]) for z in (depth // 6, depth // 2, 5 * depth // 6)]
    cuts.append((f"y = {height // 2 + margins[1]}", np.s_[:, height // 2]))
    ratios = [volume[cut].shape[0] / volume[cut].shape[1] for _, cut in cuts]
    columns = len(maps) + 2
    figure, axes = plt.subplots(
        len(cuts),
        columns,
        figsize=(4 * columns, 4 * sum(ratios)),
        height_ratios=ratios,
        layout="constrained",
        squeeze=False,
    )
    grey = {"cmap": "gray", "vmin": volume.min(), "vmax": volume.max()}
    for row, (name, cut) in zip(axes, cuts, strict=True):
        row[0].imshow(volume[cut], **grey)
        row[-1].imshow(volume[cut], **grey)
        for panel, colour, values in zip(row[1:], cycle(COLOURS), maps.values(), strict=False):
            panel.imshow(values[cut], cmap="magma", vmin=0, vmax=1)
            row[-1].imshow(_tint(values[cut], colour))
        row[0].set_ylabel(name)
        for panel in row:
            panel.set(xticks=[], yticks=[])
    for panel, title in zip(axes[0], ("input", *maps, "over the input"), strict=True):
        panel.set_title(title)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=100)
    plt.close(figure)


def _tint(values: NDArray[np.float32], colour: tuple[float, float, float]) -> NDArray[np.float32]:
    """Return a colour as RGBA (y, x, 4); its opacity follows values above one half."""
    tint = np.empty((*values.shape, 4), np.float32)
    tint[..., :3] = colour
    tint[..., 3] = 0.8 * np.clip(2 * values - 1, 0, 1)
    return tint


def main() -> None:
    """Read the files named on the command line and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("input", type=Path, help="HDF5 file with the volume")
    parser.add_argument("output", type=Path, help="HDF5 file that znni infer wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    draw(read_volume(arguments.input), read_maps(arguments.output), arguments.picture)


if __name__ == "__main__":
    main()
