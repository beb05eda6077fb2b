"""Scores of trained networks on volumes that they have not seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scores import Scores, score
from strided import Parameters, outputs_at

from znni.network.network import Network
from znni.volumes.synthetic_cells import Cells, Size, Tissue

SEEDS = range(1000, 1032)
SIZE: Size = (224, 224, 224)
# Outputs of n537 begin and end here. The other networks are scored at the same voxels.
MARGIN = 81
SPACING = 4
INNER = (slice(MARGIN, -MARGIN, SPACING),) * 3

WIDTHS = (0, 0.7, 1, 1.5, 2, 3)  # of the Gaussian before a threshold
REACH = 12  # of the widest one, in voxels
THRESHOLD = "smoothing and a threshold"
THICK = (0, 4, 7, np.inf)  # limits of the groups by thickness of sections, in pixels


class Trained(NamedTuple):
    """A network with its weights."""

    network: Network
    parameters: Parameters


class Scored(NamedTuple):
    """The scores of one network, or of thresholds, on one volume.

    Attributes:
        name: the name of the network.
        found: what is found, membrane or organelle.
        section: thickness of the volume's sections in pixels.
        scores: the scores.
    """

    name: str
    found: str
    section: float
    scores: Scores


def evaluate(networks: Mapping[str, Trained], volumes: Iterable[Cells]) -> None:
    """Print the scores of networks and of thresholds on the held-out volumes.

    Args:
        networks: the networks by name.
        volumes: the volumes of ``SEEDS``, in that order.
    """
    found: list[Scored] = []
    for seed, cells in zip(SEEDS, volumes, strict=True):
        section = Tissue.draw(np.random.default_rng(seed)).section
        boundary, organelle = cells.boundary[INNER], cells.organelle[INNER]
        print(
            f"volume {seed}, sections {section:.1f} pixels thick, {boundary.mean():.0%} membrane, "
            f"{organelle.mean():.0%} organelles"
        )
        threshold = _best_threshold(cells.raw, boundary)
        scored = [Scored(THRESHOLD, "membrane", section, threshold)]
        for name, (network, parameters) in networks.items():
            output = outputs_at(network, parameters, cells.raw, MARGIN, SPACING)
            scored.append(Scored(name, "membrane", section, score(output[0], boundary)))
            if len(output) == 3 and organelle.any():
                scored.append(Scored(name, "organelle", section, score(output[2], organelle)))
        found += scored
        for it in scored:
            print(f"    {it.name}, {it.found}: {it.scores}", flush=True)
    for line in _means(found):
        print(line)


def _best_threshold(raw: NDArray[np.uint8], truth: NDArray[np.bool_]) -> Scores:
    """Return the best score of smoothing and a threshold; the truth chooses width and sign."""
    near = (slice(MARGIN - REACH, REACH - MARGIN),) * 3
    inner = (slice(REACH, -REACH, SPACING),) * 3
    smoothed = [
        gaussian_filter(raw[near].astype(np.float32), width, radius=round(4 * width))[inner]
        for width in WIDTHS
    ]
    return max(
        (score(sign * values, truth) for values in smoothed for sign in (1, -1)),
        key=lambda scores: scores.average_precision,
    )


def _means(found: list[Scored]) -> Iterator[str]:
    """Yield a line for each network, over all volumes and over those of a thickness."""
    limits = [(THICK[0], THICK[-1]), *pairwise(THICK)]
    for low, high in limits:
        for name, what in dict.fromkeys((it.name, it.found) for it in found):
            scores = [
                it.scores
                for it in found
                if (it.name, it.found) == (name, what) and low < it.section <= high
            ]
            if scores:
                mean = Scores(*np.mean(scores, axis=0))
                yield (
                    f"sections of {low} to {high} pixels, {len(scores)} volumes, {name}, {what}: "
                    f"{mean}"
                )
