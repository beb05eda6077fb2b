"""Import of networks from other libraries, checked by running both versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from znni.core.argument_types import checks_types
from znni.core.processors import HOST
from znni.importing import conversion
from znni.importing.conversion import Imported
from znni.inference.inferer import Inferer
from znni.network.network import Network
from znni.network.weights import Float32, Weights


@checks_types
def import_network(
    source: Any,
    out: str | Path,
    *,
    like: Network | str | Path | None = None,
    axes: str = "zyx",
    overwrite: bool = False,
) -> Imported:
    """Convert a network of another library to a network file with its weights beside it.

    Batch normalizations are folded into convolutions where that is exact, as in evaluation mode.
    Dropout layers are left out. If the original can run here, both versions run on random input and
    are compared. Importing never executes code from a file; from pickles it reads only tensors.

    Args:
        source: a ``torch.nn.Module`` (in evaluation mode if it has batch normalization or dropout),
            a ``torch.export.ExportedProgram``, a state dict, or a file. Files are
            ``.pt2`` (``torch.export.save``), ``.onnx``, ``.pt`` or ``.safetensors`` (state dicts),
            or ``.h5`` (networks trained with ZNN). Or a folder of nnU-Net's results, the folder of
            a MONAI bundle, or a package of bioimage.io (``.zip``, folder or ``rdf.yaml``).
        out: the network file to write, ``NAME.yaml``; the weights go to ``NAME.safetensors``.
        like: a network, or its file, that has the layers of a state dict and their connections. A
            state dict itself holds only tensors. Convolutions are matched by name if all names
            agree, otherwise in order.
        axes: the order of the axes that the network takes. MONAI's readers of NIfTI give ``xyz``;
            znni reads every format as ``zyx``, and turns the kernels accordingly.
        overwrite: replace an existing network.

    Returns:
        A summary of the files written and of the comparison with the original.

    Raises:
        InvalidInput: the source cannot be read, or a library is missing. Or the source has a layer
            that znni does not have; the error names it. Or the network cannot be written.
        RunFailed: the network differs from the original; nothing is written.

    Example:
        >>> znni.import_network(model, "net.yaml")
    """
    return conversion.convert(
        source, out, like=like, axes=axes, overwrite=overwrite, compute=_compute
    )


def network_of(source: Any) -> tuple[Network, Weights]:
    """Return the network of a source and its weights, as ``conversion.network_of`` does."""
    return conversion.network_of(source, _compute)


def _compute(network: Network, weights: Weights, volume: Float32) -> Float32:
    """Return the output of an imported network, computed on the host.

    The volume is not padded, as no library pads it. Only the layers' own padding adds zeros.
    """
    inferer = Inferer(
        network, weights, border="valid", any_spacing=True, costs="built-in", device=HOST
    )
    return inferer(volume)
