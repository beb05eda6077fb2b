"""Labels and probabilities of a case beside those of nnU-Net, voxel by voxel.

nnU-Net's Python runs it, because it reads every file format:
``python -m bench.peers.nnunet_compare MODEL EXPECTED OURS``. It prints rows as JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Labels: TypeAlias = NDArray[np.integer[Any]]
Probabilities: TypeAlias = NDArray[np.float32]
Row: TypeAlias = dict[str, Any]
TIE = 1e-4  # between the two best probabilities: closer ones are a near-tie
SAME = 1e-4  # millimetres, or of a direction: closer ones are the same geometry


def compare(expected: Path, ours: Path, *, regions: bool, turned: bool = False) -> Row:
    """Return how far a file of labels is from nnU-Net's, and probabilities beside it if it has any.

    Args:
        expected: nnU-Net's labels, with probabilities in ``.npz`` beside them.
        ours: labels to judge.
        regions: whether each map has a threshold of its own.
        turned: whether nnU-Net's reader turns scans to RAS. Then probabilities are turned, too.
    """
    row: Row = {"scan": _stem(expected).name}
    if not ours.exists():
        return row | {"skipped": "no labels"}
    theirs, geometry = _read(expected, turned=turned)
    found, our_geometry = _read(ours, turned=turned)
    row |= {
        "volume": "x".join(map(str, theirs.shape)),
        "same_geometry": _close(geometry, our_geometry) and found.shape == theirs.shape,
        "same_type": found.dtype == theirs.dtype,
    }
    if found.shape != theirs.shape:
        return row
    values = _probabilities(expected)
    gaps = margins(values, found != theirs, regions=regions)
    row |= {
        "labels": np.bincount(theirs.ravel()).tolist(),
        "labels_apart": len(gaps),
        "ties": int((gaps < TIE).sum()),
        "largest_gap": float(gaps.max(initial=0)),
    }
    ended = _stem(ours).with_suffix(".npz")
    if ended.exists():
        row["difference"] = float(np.abs(_probabilities(ours) - values).max())
    return row


def margins(values: Probabilities, where: NDArray[np.bool_], *, regions: bool) -> Probabilities:
    """Return how clear nnU-Net's labels are at some voxels, by its probabilities (f, z, y, x).

    Without regions, this is the distance of the two largest ones. With regions, it is the distance
    of the closest one from its threshold.
    """
    maps = values[:, where]
    if regions:
        return np.asarray(np.abs(maps - np.float32(0.5)).min(0))
    second, first = np.partition(maps, -2, axis=0)[-2:]
    return np.asarray(first - second)


def _stem(path: Path) -> Path:
    return path.with_name(path.name.split(".")[0])


def _probabilities(labels: Path) -> Probabilities:
    with np.load(_stem(labels).with_suffix(".npz")) as file:
        return np.asarray(file["probabilities"])


def _read(path: Path, *, turned: bool) -> tuple[Labels, tuple[tuple[float, ...], ...]]:
    import SimpleITK

    file = SimpleITK.ReadImage(str(path))
    if turned:
        file = SimpleITK.DICOMOrient(file, "RAS")
    geometry = (file.GetSpacing(), file.GetOrigin(), file.GetDirection())
    return SimpleITK.GetArrayFromImage(file), geometry


def _close(one: tuple[tuple[float, ...], ...], other: tuple[tuple[float, ...], ...]) -> bool:
    return all(np.allclose(a, b, rtol=0, atol=SAME) for a, b in zip(one, other, strict=True))


def main() -> None:
    """Compare all labels of a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="A results folder, with dataset.json.")
    parser.add_argument("expected", type=Path, help="nnU-Net's labels and probabilities.")
    parser.add_argument("ours", type=Path, help="Labels to judge, and probabilities if there are.")
    given = parser.parse_args()
    dataset = json.loads((given.model / "dataset.json").read_text())
    reader = json.loads((given.model / "plans.json").read_text())["image_reader_writer"]
    ending, regions = dataset["file_ending"], "regions_class_order" in dataset
    turned = reader.endswith("WithReorient")
    rows = [
        compare(path, given.ours / path.name, regions=regions, turned=turned)
        for path in sorted(given.expected.glob(f"*{ending}"))
    ]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
