"""Live ``torch.nn.Module`` objects as graphs of steps: they are exported, and then read."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput
from znni.importing.exported_program import of_live_program
from znni.importing.steps import Found, Original
from znni.network.weights import Float32

EXPORT = (
    "give it as torch.export.export(module.eval(), (torch.zeros(1, MAPS, Z, Y, X),)), or that "
    "saved with torch.export.save to a .pt2 file"
)
TRAINING = "is in training mode, in which it computes something else; give module.eval()"
# Extents of inputs with which an export is tried. Some networks take multiples of their poolings
# only, and others, without padding, those of certain remainders.
SIZES = (128, 192, 132, 140, 156, 188, 100)


def read_module(module: Any) -> Found:
    """Return the network of a module.

    Raises:
        InvalidInput: the module cannot be exported, has an operator that cannot be represented, or
            is in a training mode that computes something else.
    """
    own = copy.deepcopy(module).cpu().float()
    first: InvalidInput | None = None
    for inputs in _inputs(own):
        try:
            found = of_live_program(_exported(own, inputs))
        except InvalidInput as error:
            first = first or error
        else:
            return replace(found, original=Original("PyTorch", _runner(own)))
    raise first or InvalidInput(f"there is no 3D convolution in it; {EXPORT}")


def _inputs(module: Any) -> Iterator[Any]:
    """Yield inputs that a module may take, with the maps of its first convolution."""
    import torch

    convolutions = [part for part in module.modules() if isinstance(part, torch.nn.Conv3d)]
    for size in SIZES if convolutions else ():
        yield torch.zeros(1, convolutions[0].in_channels, size, size, size)


def _exported(module: Any, inputs: Any) -> Any:
    """Return the exported program of a module, for inputs of any extents if it takes these."""
    import torch

    free = dict.fromkeys((2, 3, 4), torch.export.Dim.AUTO)
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.export.export(module, (inputs,), dynamic_shapes=(free,))
    except Exception as error:  # PyTorch raises what the module raises, and errors of its own
        problem = str(error).strip().split("\n")[0] or type(error).__name__
        raise InvalidInput(f"cannot be exported: {problem}; {EXPORT}") from None


def _runner(module: Any) -> Callable[[Float32], Float32]:
    """Return a function that runs the module in evaluation mode on arrays."""

    def run(x: Float32) -> Float32:
        import torch

        with torch.inference_mode():
            outputs = module.eval()(torch.from_numpy(x.copy())[None])
        several = outputs if isinstance(outputs, list | tuple) else [outputs]
        return np.asarray(torch.cat(list(several), 1)[0].numpy(), np.float32)

    return run
