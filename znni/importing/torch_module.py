"""Live ``torch.nn.Module`` objects as graphs of steps: they are exported, and then read."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput, first_line
from znni.core.shapes import Vec3
from znni.importing.exported_program import of_live_program
from znni.importing.margins import Unsuited
from znni.importing.steps import Found, Original
from znni.network.layer_geometry import NO_PADDING
from znni.network.weights import Float32

EXPORT = (
    "give it as torch.export.export(module.eval(), (torch.zeros(1, MAPS, Z, Y, X),)), or that "
    "saved with torch.export.save to a .pt2 file"
)
# Extents of inputs with which an export is tried. Some networks take multiples of their poolings
# only, and others, without padding, those of certain remainders.
SIZES = (128, 140, 192, 132, 188, 320)


def read_module(module: Any) -> Found:
    """Return the network of a module.

    The maps of its input are those that the first convolution takes, or the one with the fewest.

    Raises:
        InvalidInput: the module cannot be exported, has an operator that cannot be represented, or
            is in a training mode that computes something else.
    """
    import torch

    own = copy.deepcopy(module).cpu().float()
    convolutions = [part for part in own.modules() if isinstance(part, torch.nn.Conv3d)]
    if not convolutions:
        raise InvalidInput("there is no 3D convolution in it; give a network that has one")
    taken = [convolution.in_channels for convolution in convolutions]
    errors: list[InvalidInput] = []
    for maps, size in product(dict.fromkeys((taken[0], min(taken))), SIZES):
        try:
            found = of_live_program(_exported(own, torch.zeros(1, maps, size, size, size)))
        except (_NotExported, Unsuited) as error:
            errors.append(error)
        else:
            return replace(found, original=_original(found, own, Vec3.of(size)))
    raise errors[0]


def _original(found: Found, module: Any, size: Vec3) -> Original | str:
    """Return a module that was exported for inputs of some size as the original network."""
    if isinstance(found.original, str):
        return found.original
    # Modules take other sizes, too, unless they crop by how much depends on the size.
    crops = found.graph.margin != NO_PADDING
    return replace(found.original, run=_runner(module), size=size if crops else None)


class _NotExported(InvalidInput):
    """A module that PyTorch cannot export for inputs of a size."""


def _exported(module: Any, inputs: Any) -> Any:
    """Return the exported program of a module, for inputs of any extents if it takes these."""
    import torch

    free = dict.fromkeys((2, 3, 4), torch.export.Dim.AUTO)
    silent = logging.root.manager.disable
    logging.disable(logging.ERROR)  # PyTorch would print the graph of what it cannot export
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore"):
            return torch.export.export(module, (inputs,), dynamic_shapes=(free,))
    except Exception as error:  # PyTorch raises what the module raises, and errors of its own
        raise _NotExported(f"cannot be exported: {first_line(error)}; {EXPORT}") from None
    finally:
        logging.disable(silent)


def _runner(module: Any) -> Callable[[Float32], Float32]:
    """Return a function that runs the module in evaluation mode on arrays."""

    def run(x: Float32) -> Float32:
        import torch

        with torch.inference_mode():
            outputs = module.eval()(torch.from_numpy(x.copy())[None])
        if isinstance(outputs, Mapping):
            outputs = list(outputs.values())
        several = outputs if isinstance(outputs, list | tuple) else [outputs]
        return np.asarray(torch.cat(list(several), 1)[0].numpy(), np.float32)

    return run
