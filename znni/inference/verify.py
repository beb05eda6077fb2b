"""Verification: compute random voxels of an output again, from its input and network alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, Unreachable, Unreadable, option
from znni.core.option_types import ACCURACIES, VERIFIED_VOXELS, Accuracy
from znni.core.shapes import Box, Vec3
from znni.core.text import counted, duration
from znni.core.volume import Volume
from znni.engine.run_state import Progress, no_progress
from znni.engine.tiles import for_job, windows_over
from znni.inference.brute_force import AtVoxel, multiplications_at, windowed_at
from znni.inference.model_choice import shared_form
from znni.inference.provenance import Origin, input_of, mask_of, origin_of, weights_of
from znni.inference.voxel_reference import has_output, seen_in, voxel_at, whole_job
from znni.machine.detect import detect_host
from znni.machine.machine import Device
from znni.network.activations import TRAITS
from znni.network.network import Network
from znni.network.weights import Weights, weights_for
from znni.volumes.block_checks import BlockChecks, check_blocks
from znni.volumes.locate import open_volume, read_ledger, split_dataset
from znni.volumes.partial_file import check_finished
from znni.volumes.stored import StoredVolume

TRIES = 100  # boxes of the mask that are searched for a voxel to compute
SEARCHED = 64
IN_FLOAT64 = "in float64"
SHARE_OF_RATE = 0.1  # of a core's float64 operations
CERTAINTY = 0.95  # of finding a wrong voxel, by which the share of wrong voxels is told
WOULD_BE_FOUND = f"would be found with {CERTAINTY:.0%} certainty".replace("%", " %")
LONG_SECONDS = 60  # of computing voxels: more is worth a warning

log = logging.getLogger("znni")


@dataclass(frozen=True)
class Verification:
    """Comparison of an output with values computed from input and network.

    Attributes:
        out: the output.
        voxels: number of voxels chosen.
        unreadable: number of chosen voxels that lie in damaged blocks and cannot be read.
        unneeded: number of chosen voxels that lie outside the mask, or outside the box that the
            input is cropped to, and hold 0. All other readable voxels were computed again.
        seed: seed that the voxels were chosen with.
        wrong: number of voxels that differ by more than is allowed.
        largest_error: the largest difference, in the units of the network's output.
        allowed: error allowed at the voxel with the largest one. It is the rounding of the
            primitives' accuracy class and of the stored type.
        at: the voxel with the largest error, in output voxels; None if no voxel could be read.
        blocks: comparison of the output's blocks with their checksums.
        how: how the voxels were computed again.
    """

    out: str
    voxels: int
    unreadable: int
    unneeded: int
    seed: int
    wrong: int
    largest_error: float
    allowed: float
    at: Vec3 | None
    blocks: BlockChecks
    how: str = IN_FLOAT64

    @property
    def agrees(self) -> bool:
        """Return whether nothing is wrong."""
        return not (self.wrong or self.unreadable or self.blocks.damaged)

    def __str__(self) -> str:
        """Return the result in one line."""
        if self.wrong:
            verdict = f"{counted(self.wrong, 'voxel')} {'differs' if self.wrong == 1 else 'differ'}"
        else:
            agree = "agree" if self.blocks.checked else "the voxels looked at agree"
            verdict = agree if self.agrees else "is damaged"
        computed = self.voxels - self.unneeded - self.unreadable
        again = f"{counted(computed, 'voxel')} computed again {self.how}"
        masked = ""
        if self.unneeded:
            masked = f", {self.unneeded:,} outside the mask or the crop hold 0 as skipped ones do"
        unread = f", {self.unreadable:,} cannot be read" * bool(self.unreadable)
        largest = ""
        if self.at:
            z, y, x = self.at
            largest = (
                f", largest error {self.largest_error:.2g} at z={z}, y={y}, x={x} of the output, "
                f"where {self.allowed:.2g} is allowed"
            )
        missed = ""
        if read := not self.wrong and self.voxels - self.unreadable:
            missed = f"; {wrong_share(read)} wrong voxels {WOULD_BE_FOUND}"
        return (
            f"{self.out}: {verdict}; {again}{masked}{unread} (seed {self.seed}){largest}; "
            f"{self.blocks}{missed}"
        )


@checks_types
def verify(
    out: str | Path,
    *,
    source: str | Path | ArrayLike | None = None,
    mask: str | Path | ArrayLike | None = None,
    weights: Weights | str | Path | None = None,
    voxels: int = VERIFIED_VOXELS,
    blocks: int | None = None,
    seed: int | None = None,
    progress: Progress = no_progress,
) -> Verification:
    """Compute voxels of an output again, each by itself in float64, from input and network alone.

    The blocks of the output are read too, and compared with the checksums stored when they were
    written.

    A voxel takes the multiplications of one field of view, on the host. This takes seconds for a
    field of view of 85^3 and 80 maps, and minutes for 163^3. If a network is computed in windows,
    all windows that have a voxel are computed, each once.

    Args:
        out: an output of ``znni.infer``: a file, or the URL of a Zarr. Its attributes say how it
            was computed.
        source: the input; needed only if it has moved or was an array.
        mask: the mask of the run; needed only if it has moved or was an array.
        weights: the weights or their file; needed only if the file has moved.
        voxels: number of voxels to compute, each with all its maps.
        blocks: number of blocks to read; by default all.
        seed: seed for choosing voxels and blocks; by default another one each time.
        progress: function called after each block, and then after each voxel or window. Its
            arguments are the number done and the number wanted.

    Raises:
        InvalidInput: the output lacks these attributes. Or input or weights are missing, or are not
            those that the output was computed from.
        Unreadable: the input cannot be read. Unreadable voxels of the output are counted instead.
        Unreachable: input or output cannot be reached, for example because a server does not
            answer.

    Example:
        >>> znni.verify("boundaries.h5", voxels=100).agrees
        True
    """
    if voxels < 1 or min(blocks or 0, seed or 0) < 0:
        raise InvalidInput(
            f"{voxels} voxels and {blocks} blocks by seed {seed} cannot be verified; give 1 voxel "
            f"or more, and 0 or more of the others"
        )
    place = split_dataset(str(out))[0]
    check_finished(Path(place))
    output = open_volume(out)
    if not isinstance(output, StoredVolume) or str(out).rstrip("/").endswith(".partial"):
        raise InvalidInput(f"{out}: is not a finished output; give a file that znni infer has made")
    origin = origin_of(output)
    if output.attribute("exported_from") is not None:
        raise InvalidInput(
            f"{out}: is a copy that znni export has made of {output.attribute('exported_from')}; "
            f"verify that, because a copy has no checksums of its blocks"
        )
    ledger = read_ledger(place)
    volume = input_of(origin, output, ledger, source)
    masked = mask_of(origin, output, ledger, volume, mask)
    parameters = weights_of(origin, output, weights)
    form = shared_form(origin.network).network
    if form is not origin.network:  # the library's numbers are compared with znni's layers
        origin, parameters = replace(origin, network=form), weights_for(form, None, None)
    if seed is None:
        seed = int(np.random.default_rng().integers(2**32))
    generator = np.random.default_rng(seed)
    checked = check_blocks(output, ledger, output.name, blocks, generator, progress)
    chosen = _voxels(voxels, output.size, origin, masked, generator)
    places, stored = _readable(output, chosen)
    offset = Vec3(*origin.attributes.voxel_offset)
    warn_of_time(_over(volume, origin), [at + offset for at in places])
    needed = np.array(
        [stored[index].any() or has_output(masked, origin, at) for index, at in enumerate(places)],
        bool,
    )
    again = [places[index] for index in np.flatnonzero(needed)]
    found = _computed(volume, origin, parameters, again, progress)
    computed = np.zeros((len(places), origin.network.out_features))
    computed[needed] = np.reshape([each.values for each in found], computed[needed].shape)
    largest_sum = max((each.largest_sum for each in found), default=0.0)
    rounding = tolerance(origin.network, origin.attributes.accuracy, largest_sum)
    if origin.labels:
        errors = origin.labels.misfit(stored, computed)
        errors[~needed] = 0.0
        allowed = np.full(errors.shape, 2 * rounding)
    else:
        errors, allowed = compared(stored, computed, origin.attributes.scale, rounding)
    differ = ~(errors <= allowed)  # true for NaN too
    ranked = np.nan_to_num(errors, nan=np.inf)
    worst = np.unravel_index(ranked.argmax(), ranked.shape) if places else None
    return Verification(
        out=str(out),
        voxels=voxels,
        unreadable=voxels - len(places),
        unneeded=len(places) - len(found),
        seed=seed,
        wrong=int(differ.any(axis=1).sum()),
        largest_error=float(errors[worst]) if worst else 0.0,
        allowed=float(allowed[worst]) if worst else 0.0,
        at=places[worst[0]] if worst else None,
        blocks=checked,
        how=" and ".join(_how(origin.network)),
    )


def wrong_share(voxels: int) -> str:
    """Return the share of wrong voxels that random voxels find with certainty, in words."""
    return f"more than {100 * (1 - (1 - CERTAINTY) ** (1 / voxels)):.2g} %"


def seconds_for(network: Network, places: Sequence[Vec3], host: Device) -> float:
    """Return the seconds to expect for voxels; 0 if another library computes the network.

    NumPy computes in float64 on one core, and reaches a tenth of the half of its float32 rate.

    Args:
        network: a chain, or a network for a volume.
        places: the voxels of the volume.
        host: the processors.
    """
    if network.models:
        return 0.0
    rate = host.flops / host.threads / 2 * SHARE_OF_RATE
    return 2 * multiplications_at(network, places) / rate


def warn_of_time(network: Network, places: Sequence[Vec3]) -> None:
    """Warn if voxels take long.

    Args:
        network: a chain, or a network for a volume.
        places: the voxels of the volume.
    """
    host = detect_host().host
    seconds = seconds_for(network, places, host)
    if seconds <= LONG_SECONDS:
        return
    fewer = len(places)
    while fewer > 1 and seconds_for(network, places[:fewer], host) > LONG_SECONDS:
        fewer //= 2
    advice = f"; give {option('voxels', fewer)} for fewer" if fewer < len(places) else ""
    takes = "takes" if len(places) == 1 else "take"
    log.warning("%s %s about %s%s", counted(len(places), "voxel"), takes, duration(seconds), advice)


def _how(network: Network) -> Iterator[str]:
    """Yield, in words, how voxels of a network are computed again."""
    for model in network.models:
        yield f"by {model.runtime} itself, in float32"
    if len(network.models) < len(network.nodes):
        yield IN_FLOAT64


def _readable(output: StoredVolume, places: list[Vec3]) -> tuple[list[Vec3], NDArray[Any]]:
    """Return the voxels that can be read, and their values (voxels, f')."""
    readable, values = [], []
    for at in places:
        try:
            values.append(output.read(Box(at, at + 1))[:, 0, 0, 0])
        except Unreachable:
            raise
        except Unreadable:  # the result counts the voxels that are left out
            continue
        readable.append(at)
    return readable, np.array(values, output.dtype).reshape(-1, output.features)


def tolerance(network: Network, accuracy: Accuracy, largest_sum: float) -> float:
    """Return the largest error to expect from a network's primitives.

    Args:
        network: the network; each of its convolutions may add the error of the class.
        accuracy: the class of the network's primitives, relative to the largest value.
        largest_sum: the largest magnitude that was seen in the last convolution before its
            activation.
    """
    bounded = TRAITS[network.last_activation].is_bounded
    return (
        ACCURACIES[accuracy]
        * (len(network.weighted) + len(network.models))
        * (1.0 if bounded else largest_sum)
    )


def compared(
    stored: NDArray[Any], computed: NDArray[np.float64], scale: float, rounding: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the errors of stored values, and the errors that are allowed.

    Args:
        stored: float32, float16 (infinite beyond its range) or uint8 (0 to 1, clipped outside).
        computed: values computed in float64.
        scale: factor from a stored value to the network's value.
        rounding: error allowed for the primitives' rounding.
    """
    values = stored.astype(np.float64) * scale
    if stored.dtype.kind != "f":
        return np.abs(values - computed.clip(0, 1)), np.full(computed.shape, rounding + scale / 2)
    kind = np.finfo(stored.dtype)
    allowed = rounding + np.abs(computed) * float(kind.eps) / 2 + float(kind.smallest_subnormal) / 2
    overflown = np.isinf(values) & (np.sign(values) * computed + allowed >= float(kind.max))
    with np.errstate(invalid="ignore"):
        return np.where(overflown, 0.0, np.abs(values - computed)), allowed


def _voxels(
    count: int, size: Vec3, origin: Origin, masked: Volume | None, generator: np.random.Generator
) -> list[Vec3]:
    """Return random voxels of an output: in windows, within the mask if some are found there."""
    offset = Vec3(*origin.attributes.voxel_offset)
    among = masked if origin.network.window else None
    return [_voxel_in(among, size, offset, generator) for _ in range(count)]


def _voxel_in(
    masked: Volume | None, size: Vec3, offset: Vec3, generator: np.random.Generator
) -> Vec3:
    """Return a random voxel of an output, within the mask if one is found there."""
    at = Vec3(*map(int, generator.integers(size)))
    for _ in range(TRIES if masked else 0):
        assert masked is not None
        box = Box(at, (at + SEARCHED).minimum(size))
        wanted = np.argwhere(masked.read(box.shifted(offset)).any(axis=0))
        if len(wanted):
            return at + Vec3(*wanted[generator.integers(len(wanted))].tolist())
        at = Vec3(*map(int, generator.integers(size)))
    return at


def _computed(
    volume: Volume, origin: Origin, weights: Weights, places: Sequence[Vec3], progress: Progress
) -> list[AtVoxel]:
    """Return voxels of an output, computed from its input."""
    if origin.network.window:
        offset = Vec3(*origin.attributes.voxel_offset)
        seen, inputs = partial(seen_in, volume, origin), [at + offset for at in places]
        return windowed_at(_over(volume, origin), weights, seen, inputs, progress)
    computed = []
    for done, at in enumerate(places, start=1):
        computed.append(voxel_at(volume, origin, weights, at))
        progress(done, len(places))
    return computed


def _over(volume: Volume, origin: Origin) -> Network:
    """Return the network of an output for its volume: with windows over it, or evaluated once."""
    network = origin.network
    if network.window:
        return replace(network, window=windows_over(network, volume.size))
    return for_job(network, whole_job(volume, origin)) if network.is_tiled else network
