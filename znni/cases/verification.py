"""Verification of a case's labels: some voxels are computed again, by NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from znni.cases.arrays import Maps, Turned
from znni.cases.case_folder import Case
from znni.cases.networks import NetworkSet, alone
from znni.cases.preparation import preparation_for, running, stored_values, unit_of
from znni.cases.reference import ResampledScan, ScanInMemory
from znni.cases.scan import Scan, open_scan
from znni.core.errors import InvalidInput
from znni.core.logged import telling_if_long
from znni.core.option_types import VERIFIED_VOXELS
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.engine.labels import labels_for
from znni.engine.run_state import Progress, no_progress
from znni.engine.tiles import windows_over
from znni.inference.brute_force import windowed_at
from znni.inference.provenance import check_weights
from znni.inference.verify import WOULD_BE_FOUND, tolerance, warn_of_time, wrong_share
from znni.network.case_rules import ScaleRange
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import Weights
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume
from znni.volumes.stored import StoredVolume


@dataclass(frozen=True)
class CaseVerification:
    """Comparison of labels with those computed again.

    Attributes:
        out: the labels.
        voxels: the number of voxels.
        labelled: the number of those chosen among the voxels with a label other than 0. All others
            were chosen among all voxels.
        outside: the number of them outside of the crop, where labels are 0.
        ties: the number of other labels whose maps are equal but for rounding.
        wrong: the number of wrong labels.
        at: a voxel with a wrong label (z, y, x) of the file; None if there is none.
        seed: the seed of the choice of voxels.
    """

    out: Path
    voxels: int
    labelled: int
    outside: int
    ties: int
    wrong: int
    at: Vec3 | None
    seed: int

    @property
    def agrees(self) -> bool:
        """True if no label is wrong."""
        return not self.wrong

    def __str__(self) -> str:
        """Return the account in words."""
        about = (
            f"{counted(self.voxels, 'voxel')} computed again in float64, {self.labelled} of them "
            f"chosen among those with labels"
        )
        if self.outside:
            about += f", {self.outside} of them outside of the crop"
        if self.ties:
            about += f"; at {self.ties}, another map is as large but for rounding"
        if self.at is None:
            fewest = min(self.labelled or self.voxels, self.voxels - self.labelled)
            both = " of all voxels, or of those with labels," if self.labelled else ""
            return (
                f"{self.out}: {about}; all labels agree (seed {self.seed}); "
                f"{wrong_share(fewest)} wrong ones{both} {WOULD_BE_FOUND}"
            )
        z, y, x = self.at
        return (
            f"{self.out}: {about}; {counted(self.wrong, 'label')} differ{'s' * (self.wrong == 1)}, "
            f"as that at z={z}, y={y}, x={x} (seed {self.seed})"
        )


def verify_case(
    case: Case,
    networks: Network | NetworkSet,
    weights: Weights | Sequence[Weights],
    *,
    change: Callable[[Network], Network] = lambda it: it,
    voxels: int = VERIFIED_VOXELS,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> CaseVerification:
    """Compute some voxels of a case's labels again, and compare them.

    The whole scan and all labels are read into memory. Each voxel takes up to eight windows of the
    network, in NumPy; voxels in the same windows share these. Windows lie and are mirrored as the
    labels note. Labels whose components were removed cannot be verified.

    Args:
        case: the scan, and its labels.
        networks: the network, whose file describes whole cases, or a set of one.
        weights: its parameters.
        change: changes the network, for labels that do not note the windows.
        voxels: the number of voxels. Half of them are chosen among those with labels other than 0.
        seed: the seed of the choice of voxels; None: a new one.
        progress: called with the windows that are computed, and all of them.

    Raises:
        InvalidInput: scan, labels or network cannot be used, the labels have other voxels or are
            of other weights, or they cannot be verified.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    _check_simple(asked)
    network, rules = asked.networks[0], asked.rules
    parameters = weights if isinstance(weights, Weights) else weights[0]
    stored_as = stored_values(network)
    rule = labels_for(network, stored_as.labels, stored_as.threshold)
    assert rule is not None
    if seed is None:
        seed = int(np.random.default_rng().integers(2**32))
    generator = np.random.default_rng(seed)
    with (
        telling_if_long("reading the scan and its labels"),
        TemporaryDirectory(dir=case.out.parent, prefix=".znni-") as folder,
    ):
        scan = open_scan(case.files, rules, Path(folder), unit_of(network))
        stored_labels = open_volume(case.out)
        labels = _labels(stored_labels, scan, rule.features(network.out_features))
        network = change(_as_computed(network, parameters, stored_labels))
        known = ScanInMemory(scan, network)
        prepared = preparation_for(scan, known.network, Path(folder))
    over = running(prepared)
    over = replace(over, window=windows_over(over, prepared.image.target))
    labelled = _labelled(labels, voxels // 2, generator)
    anywhere = (generator.integers(labels.size) for _ in range(voxels - len(labelled)))
    chosen = labelled + [Vec3(*map(int, at)) for at in anywhere]
    inside = [at - known.crop.start for at in chosen if Box(at, at + 1).within(known.crop)]
    warn_of_time(over, inside)
    seen = ResampledScan(known, prepared.image)
    computed = iter(windowed_at(over, parameters, seen, inside, progress))
    outside = ties = 0
    wrong: list[Vec3] = []
    for at in chosen:
        stored = labels.read(Box(at, at + 1))[:, 0, 0, 0][np.newaxis]
        if not Box(at, at + 1).within(known.crop):
            outside += 1
            wrong += [at] * bool(stored.any())
        else:
            values, largest = next(computed)
            misfit = float(rule.misfit(stored, values[np.newaxis]).max())
            near = 2 * tolerance(over, "float32", largest)
            ties += 0 < misfit <= near
            wrong += [at] * (not misfit <= near)
    first = _as_stored(wrong[0], scan) if wrong else None
    numbers = len(chosen), len(labelled), outside, ties, len(wrong)
    return CaseVerification(case.out, *numbers, first, seed)


def _check_simple(networks: NetworkSet) -> None:
    """Check that labels at a voxel follow from one network and the scan around the voxel."""
    rules, problem = networks.rules, None
    if len(networks.networks) > 1 or networks.numbers:
        problem = (
            f"{networks.name} joins the labels of networks; verify those of each network alone"
        )
    elif stage := rules.previous_stage:
        problem = (
            f"network {networks.name} takes the labels of {stage.name} too, which verify cannot "
            f"compute; verify the labels of {stage.name}"
        )
    elif not all(isinstance(step, ScaleRange) for step in rules.values):
        problem = (
            f"network {networks.name} takes statistics of the resampled scan, which verify cannot "
            f"compute; compare some labels with MONAI's"
        )
    elif rules.largest:
        problem = (
            f"network {networks.name} keeps the largest components of labels, which verify cannot "
            f"find; leave out largest: in a copy of its file, and compute the labels again"
        )
    if problem:
        raise InvalidInput(problem)


def _as_computed(network: Network, weights: Weights, labels: ArrayVolume) -> Network:
    """Return a network in the windows that labels note. If they note weights, check these."""
    if recorded := labels.attribute("weights_sha256"):
        advice = "give the network file, or the folds of the results folder, that made the labels"
        check_weights(labels.name, str(recorded), weights, advice)
    text = labels.attribute("network_file")
    if text is None:
        return network
    noted = network_from_text(str(text), f"{labels.name}, attribute network_file")
    return replace(network, window=noted.window)


def _labels(volume: ArrayVolume, scan: Scan, maps: int) -> ArrayVolume:
    """Return labels, oriented as the scan, in memory: to read a voxel may take a whole file."""
    turned = StoredVolume(Turned(Maps(volume), scan.turn), volume.name)
    if turned.size != scan.volume.size or volume.features != maps:
        raise InvalidInput(
            f"{volume.name} has {counted(volume.features, 'map')} of {volume.size}, and the scan "
            f"has {scan.volume.size} voxels; give the labels of this scan"
        )
    return ArrayVolume(turned.read(Box(ZERO, turned.size)), volume.name)


def _labelled(labels: ArrayVolume, count: int, generator: np.random.Generator) -> list[Vec3]:
    """Return random voxels with a label other than 0; none if there is no label."""
    planes = [Box(Vec3(z, 0, 0), labels.size._replace(z=z + 1)) for z in range(labels.size.z)]
    last = np.cumsum([np.count_nonzero(labels.read(plane).any(axis=0)) for plane in planes])
    voxels = []
    for drawn in generator.integers(last[-1], size=count) if last[-1] else ():
        z = int(np.searchsorted(last, drawn, side="right"))
        in_plane = np.argwhere(labels.read(planes[z]).any(axis=(0, 1)))
        y, x = in_plane[drawn - last[z]]  # counted from the end of the plane
        voxels.append(Vec3(z, int(y), int(x)))
    return voxels


def _as_stored(at: Vec3, scan: Scan) -> Vec3:
    """Return a voxel of a scan in the order of its file's axes."""
    turn, size = scan.turn, scan.volume.size
    place = [0, 0, 0]
    for axis, own in enumerate(turn.axes):
        place[own] = size[axis] - 1 - at[axis] if turn.reversed[axis] else at[axis]
    return Vec3(*place)
