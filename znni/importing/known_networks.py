"""Networks of other libraries that are built from their arguments. No other class is built."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from znni.core.errors import InvalidInput

# The modules that have the networks, and the names of their classes.
KNOWN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "monai": (
        "monai.networks.nets",
        ("UNet", "BasicUNet", "BasicUnet", "DynUNet", "VNet", "AttentionUnet", "SegResNet"),
    ),
    "pytorch3dunet": (
        "pytorch3dunet.unet3d.model",
        ("UNet3D", "ResidualUNet3D", "ResidualUNetSE3D"),
    ),
}


def is_known(library: str, name: str) -> bool:
    """Return whether a class of a library is built here."""
    return name in KNOWN.get(library, ("", ()))[1]


def known_names() -> str:
    """Return the names of all classes that are built here."""
    return "; ".join(f"{library}: {', '.join(names)}" for library, (_, names) in KNOWN.items())


def built(library: str, name: str, arguments: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return a known network in evaluation mode.

    Args:
        library: its library.
        name: the name of its class.
        arguments: the arguments of the class.
        arrays: its parameters, by their names in its state dict.

    Raises:
        InvalidInput: the library is not installed, or arguments and parameters do not fit. The
            message goes on after "its weights".
    """
    if find_spec(library) is None:
        raise InvalidInput(f"are those of {name} of {library}, which is not installed; install it")
    import torch

    try:
        module = getattr(import_module(KNOWN[library][0]), name)(**arguments)
        module.load_state_dict({key: torch.from_numpy(one) for key, one in arrays.items()})
    except Exception as error:  # the library's constructors raise any kind
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidInput(f"do not fit {name} of {library} here: {problem}") from None
    return module.eval()
