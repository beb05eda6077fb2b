"""Tensors from files of ``torch.save``. Reading them never executes code from the file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, MissingLibrary, first_line, option
from znni.importing.checks import array_of
from znni.importing.torch_module import EXPORT

SAFE_SINCE = "2.6"  # compared as versions by torch.__version__
SAVE_TENSORS = (
    "give the module to znni.import_network, or its tensors, of torch.save(module.state_dict(), "
    f"...), with {option('like', 'NET.yaml')} for the layers"
)


# The names under which versions of NumPy pickle a number, as trainings note them.
NUMPY_SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
NUMPY_TYPES = ("bool", "int32", "int64", "uint32", "uint64", "float32", "float64")


def read_checkpoint(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a state dict in a ``.pt`` file, in its order.

    A checkpoint may hold other things besides its state dict.

    Raises:
        InvalidInput: the file has anything but tensors, or several state dicts, or none.
    """
    return arrays_of(_state_dict(read_held(path)))


def read_held(path: Path) -> Any:
    """Return what a file of ``torch.save`` holds: tensors, numbers, texts, and lists of these.

    Raises:
        InvalidInput: the file has anything else, or is damaged, or PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingLibrary("needs PyTorch, which is not installed: pip install 'znni[torch]'")
    import torch

    if torch.__version__ < SAFE_SINCE:
        raise InvalidInput(
            f"is not read with PyTorch {torch.__version__}, whose weights_only can be made to run "
            f"code of the file (CVE-2025-32434); install 2.6 or newer"
        )
    try:
        if is_zipfile(path):
            _check_archive(path)
        with torch.serialization.safe_globals(_numbers()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InvalidInput(
            f"is a whole module or the like, which is not loaded, as that would run code of the "
            f"file, or is damaged; {SAVE_TENSORS}"
        ) from None
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file makes the reader raise any kind
        raise InvalidInput(
            f"cannot be read as a file of torch.save: {first_line(error)}; is the file whole? save "
            f"it again"
        ) from None


def _numbers() -> list[Any]:
    """Return what NumPy's numbers are made of. None of it runs anything else."""
    scalar = type(np.float64(0)).__reduce__(np.float64(0))[0]
    types = [type(np.dtype(name)) for name in NUMPY_TYPES]
    return [*((scalar, name) for name in NUMPY_SCALARS), np.dtype, *types]


def arrays_of(state: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """Return a state dict's tensors (or arrays) as arrays."""
    arrays = {}
    for name, value in state.items():
        array = value if isinstance(value, np.ndarray) else array_of(value)
        if array is not None:
            arrays[str(name)] = array
    return arrays


def _check_archive(path: Path) -> None:
    """Refuse files that other functions of PyTorch wrote."""
    with ZipFile(path) as archive:
        parts = {name.split("/")[-1] for name in archive.namelist()}
    if "archive_format" in parts:
        raise InvalidInput("is an exported program; name it with the suffix .pt2")
    if "constants.pkl" in parts:
        raise InvalidInput(f"is a TorchScript module, whose code is not read; {EXPORT}")


def _state_dict(held: object) -> Mapping[str, Any]:
    """Return the only mapping of names to tensors in a file's content."""
    if _is_state_dict(held):
        return held  # type: ignore[return-value]
    inner = held.items() if isinstance(held, Mapping) else ()
    dicts = {str(key): value for key, value in inner if _is_state_dict(value)}
    if len(dicts) != 1:
        names = f"{', '.join(dicts)}" or "none"
        raise InvalidInput(f"has to hold one state dict, and holds {names}; {SAVE_TENSORS}")
    return next(iter(dicts.values()))


def _is_state_dict(value: object) -> bool:
    import torch

    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(item, torch.Tensor) for item in value.values())
    )
