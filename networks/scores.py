"""Scores of how well a value separates boundary voxels from others, over all thresholds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Scores(NamedTuple):
    """Three summaries of one ranking; the best value of each is 1.

    Attributes:
        roc_auc: probability that a boundary voxel ranks above another voxel; chance gives 0.5.
        average_precision: precision averaged over recall; chance gives the share of boundary
            voxels.
        best_f1: F1 at the best threshold.
    """

    roc_auc: float
    average_precision: float
    best_f1: float

    def __str__(self) -> str:
        return (
            f"ROC AUC {self.roc_auc:.3f}, average precision {self.average_precision:.3f}, "
            f"best F1 {self.best_f1:.3f}"
        )


def score(values: NDArray[np.generic], boundary: NDArray[np.bool_]) -> Scores:
    """Score ``values`` against the truth; higher values mean boundary, and both have one shape."""
    order = np.argsort(-values.ravel().astype(np.float64), kind="stable")
    ranked, truth = values.ravel()[order], boundary.ravel()[order]
    last_of_tie = np.append(np.flatnonzero(np.diff(ranked)), truth.size - 1)
    hits = np.cumsum(truth)[last_of_tie].astype(np.float64)
    chosen = last_of_tie + 1.0
    positives, negatives = hits[-1], truth.size - hits[-1]
    recall, precision = hits / positives, hits / chosen
    false_alarms = (chosen - hits) / negatives
    return Scores(
        roc_auc=float(np.trapezoid(np.append(0, recall), np.append(0, false_alarms))),
        average_precision=float(np.sum(np.diff(recall, prepend=0) * precision)),
        best_f1=float(np.max(2 * hits / (chosen + positives))),
    )
