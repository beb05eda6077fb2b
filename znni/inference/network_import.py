"""Import of other libraries' networks, compared with their originals by running both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from znni.importing import conversion
from znni.importing.conversion import Imported
from znni.inference.inferer import Inferer
from znni.network.network import Network
from znni.network.weights import Float32, Weights


def import_network(
    source: Any,
    out: str | Path,
    *,
    like: Network | str | Path | None = None,
    overwrite: bool = False,
) -> Imported:
    """Turn a network of another library into a network file with its weights beside it.

    Batch normalizations are folded into convolutions, as they are in evaluation mode, and
    dropouts are left out. Where the original can be run here, both are run on random input.
    Nothing of a file is run: pickles are read for their tensors only.

    Args:
        source: a ``torch.nn.Sequential`` (in evaluation mode where it has batch normalization or
            dropout), a ``torch.export.ExportedProgram``, a state dict, or a file: ``.pt2``
            (``torch.export.save``), ``.onnx``, ``.pt`` or ``.safetensors`` (state dicts), ``.h5``
            (networks that ZNN trained).
        out: the network file to write, ``NAME.yaml``; the weights go to ``NAME.safetensors``.
        like: for a state dict, which has tensors only: a network (or its file) with its layers.
            Convolutions are matched by name where all names are the same, and else in order.
        overwrite: replace a network that is there.

    Returns:
        What was written, and how it compares with the original.

    Raises:
        InvalidInput: the source cannot be read, or has a layer that networks here do not have
            (names it), a library is missing, or the network cannot be written.
        RunFailed: the network differs from the original; nothing is written.

    Example:
        >>> znni.import_network(model, "net.yaml")
    """
    return conversion.convert(source, out, like=like, overwrite=overwrite, compute=_compute)


def network_of(source: Any) -> tuple[Network, Weights]:
    """Return the network of a source and its weights, as ``conversion.network_of`` does."""
    return conversion.network_of(source, _compute)


def _compute(network: Network, weights: Weights, volume: Float32) -> Float32:
    """Return the dense output of an imported network, computed on the host."""
    return Inferer(network, weights, costs="built-in", device="cpu")(volume)
