"""Networks of other libraries that are built here from the name and arguments of their class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from znni.core.errors import InvalidInput, MissingLibrary


@dataclass(frozen=True)
class Library:
    """A library, and the classes of its networks that are built.

    Attributes:
        module: the module that has them.
        classes: their names.
        package: the name by which pip knows the library.
    """

    module: str
    classes: tuple[str, ...]
    package: str


KNOWN: Mapping[str, Library] = {
    "monai": Library(
        "monai.networks.nets",
        ("UNet", "BasicUNet", "BasicUnet", "DynUNet", "VNet", "AttentionUnet", "SegResNet"),
        "monai",
    ),
    "pytorch3dunet": Library(
        "pytorch3dunet.unet3d.model",
        ("UNet3D", "ResidualUNet3D", "ResidualUNetSE3D"),
        "pytorch3dunet",
    ),
}


def is_known(library: str, name: str) -> bool:
    """Return whether a class of a library is built here."""
    return library in KNOWN and name in KNOWN[library].classes


def known_classes() -> str:
    """Return the classes that are built here, by library."""
    return "; ".join(f"{key}: {', '.join(one.classes)}" for key, one in KNOWN.items())


def built(library: str, name: str, given: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
    """Return a network of a known class, with the parameters of a state dict.

    Raises:
        InvalidInput: the library is not installed, or arguments or parameters do not suit it.
    """
    import torch

    known = KNOWN[library]
    if find_spec(library) is None:
        raise MissingLibrary(
            f"are those of {name} of {library}, which is not installed: pip install {known.package}"
        )
    try:
        kind = getattr(import_module(known.module), name)
    except ImportError as error:
        raise MissingLibrary(
            f"are those of {name} of {library}, which cannot be imported ({error}): pip install "
            f"{known.package}"
        ) from None
    try:
        module = kind(**given)
        module.load_state_dict({key: torch.from_numpy(one) for key, one in arrays.items()})
    except Exception as error:  # the library's constructors raise any kind
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidInput(f"do not fit {name} of {library} here: {problem}") from None
    return module.eval()
