"""The rules by which a run may resume an unfinished output, and advice on how to.

``identified`` says which values are the same. An output compares them with its ledger, and refuses
a run that differs: ``unfinished`` in ``volumes/ledger_file.py`` does so. For parts and clusters, it
is ``check`` in ``volumes/shared_ledger.py``.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from znni.core.errors import InvalidInput, Unreadable, UnusableValues, option
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import ZERO, Box
from znni.core.volume import SAME_COMMAND, NewOutput
from znni.engine.tiles import seen_by
from znni.inference.request import OpenRequest, marks_of
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import Weights
from znni.volumes.fingerprint import DIGITS, fingerprint

# Advice after an error that the same command would meet again.
CHANGED_COMMAND = "a run with these changes goes on from there"


def identified(asked: OpenRequest, weights: Weights) -> NewOutput:
    """Return the wanted output, with all that its bytes depend on beside the plan.

    Args:
        asked: the run's input, network and output.
        weights: the network's parameters.
    """
    network, job, wanted, mask = asked.network, asked.job, asked.wanted, asked.mask
    whole = Box(ZERO, job.volume)
    seen = seen_by(network, job)
    known = {
        "the weights": weights.sha256[:DIGITS],
        "the network": _mark_of(network),
        "the scaling of the input": _scaled(network.scaling),
        **fingerprint(asked.request.source, asked.volume, seen.intersection(whole) or whole),
        "the region": str(Box(job.center, job.center + job.output)),
        "the border": "valid" if seen.within(whole) else f"same, {job.pad}",
        "the type of the output": wanted.dtype,
        "its place in space": str(wanted.grid),
        **wanted.marks,
        **marks_of(asked.request.options.read),
    }
    if network.window:
        known["its windows"] = str(network.window)
    if asked.labels:
        known["its labels"] = str(asked.labels)
    if mask:
        known |= fingerprint(asked.region.mask, mask, Box(ZERO, mask.size), "the mask")
    return replace(wanted, identity=known)


def _scaled(scaling: InputScaling) -> str:
    """Return how the input is scaled. Older versions wrote the same text without normalization."""
    if scaling.normalize:
        together = " of all maps together" * scaling.together
        cropped = f", cropped to {scaling.crop}" * scaling.crops
        return f"{scaling.normalize!r}{together} where {scaling.within}{cropped}"
    return f"value * {scaling.scale!r} + {scaling.offset!r}"


def _mark_of(network: Network) -> str:
    """Return a hash of a network's computation."""
    return sha256(_described(network).encode()).hexdigest()[:DIGITS]


def _described(network: Network) -> str:
    """Return what a network computes as text. For a chain, it is that of older versions."""
    names = [INPUT, *(node.name for node in network.nodes)]
    is_chain = all(node.inputs == (name,) for node, name in zip(network.nodes, names, strict=False))
    if is_chain and network.output == names[-1]:
        return repr((network.in_features, network.layers))
    return repr((network.in_features, network.nodes, network.output))


def resume_advice(error: BaseException) -> str:
    """Return what to do with the finished blocks of a run that an error has stopped."""
    if isinstance(error, UnusableValues):
        return f"with the input mended, start afresh by {option('resume', False)}"
    if isinstance(error, Unreadable):
        return (
            f"{SAME_COMMAND}, if the input is as it was when that began, its time of change "
            f"included (cp -p keeps it)"
        )
    if isinstance(error, InvalidInput | DoesNotFit):
        return CHANGED_COMMAND
    return SAME_COMMAND
