"""Live ``torch.nn.Module`` objects as graphs of steps: they are exported, and then read."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput, first_line
from znni.core.logged import telling_if_long
from znni.core.shapes import Vec3
from znni.importing.checks import NotExpressed, origin, refuse
from znni.importing.exported_program import check_operators, cut_or_added, of_live_program
from znni.importing.margins import Unsuited
from znni.importing.operations import TRAINING
from znni.importing.steps import Found, Layered, Original
from znni.network.layer_geometry import NO_PADDING
from znni.network.weights import Float32

EXPORT = (
    "give it as torch.export.export(module.eval(), (torch.zeros(1, MAPS, Z, Y, X),)), or that "
    "saved with torch.export.save to a .pt2 file"
)
# Extents of inputs with which an export is tried. Some networks take multiples of their poolings
# only, and others, without padding, those of certain remainders. Some take a single size.
SIZES = (128, 96, 192, 140, 188, 132, 320, 64)


def read_module(module: Any) -> Found:
    """Return the network of a module.

    The maps of its input are those that the first convolution takes, or the one with the fewest.

    The module is exported for two sizes. If both give the same layers, these hold for all sizes. An
    export for free extents takes several times as long, so it comes last.

    Raises:
        InvalidInput: the module cannot be exported, has an operator that cannot be represented, or
            is in a training mode that computes something else.
    """
    import torch

    own = copy.deepcopy(module).cpu().float()
    convolutions = [part for part in own.modules() if isinstance(part, torch.nn.Conv3d)]
    if not convolutions:
        raise InvalidInput("there is no 3D convolution in it; give a network that has one")
    _check_evaluation(own)
    taken = [convolution.in_channels for convolution in convolutions]
    tried = list(product(dict.fromkeys((taken[0], min(taken))), SIZES))
    errors: list[InvalidInput] = []
    with telling_if_long("exporting the network from PyTorch"):
        if contents := _of_two_sizes(own, tried, errors):
            return contents
        for maps, size in tried:
            try:
                contents = of_live_program(_exported(own, maps, size, torch.export.Dim.AUTO))
            except (_NotExported, Unsuited) as error:
                errors.append(error)
            else:
                return _with_original(contents, own, size)
    raise errors[0]


def _check_evaluation(module: Any) -> None:
    """Refuse a module that computes something else in training, before it is exported."""
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    for name, part in module.named_modules():
        drops = isinstance(part, _DropoutNd) and part.p
        learns = isinstance(part, _BatchNorm) and part.track_running_stats
        if part.training and (drops or learns):
            refuse(origin(name, type(part).__name__), TRAINING)


def _of_two_sizes(
    own: Any, tried: Iterable[tuple[int, int]], errors: list[InvalidInput]
) -> Found | None:
    """Return the network that exports for two sizes have in common; None if there is none.

    Args:
        own: the module.
        tried: maps and extents of inputs.
        errors: gets those of inputs that do not suit the network.

    Raises:
        NotExpressed: an operator is not known. Or a layer cannot be represented, and another size
            would not change it, because the module cuts off and adds the same samples.
    """
    known: tuple[Found, int] | None = None
    refused: tuple[NotExpressed, list[object]] | None = None
    for maps, size in tried:
        try:
            program = _exported(own, maps, size, None)
        except _NotExported as error:
            errors.append(error)
            continue
        check_operators(program)
        changes = cut_or_added(program)
        if refused and refused[1] == changes:
            raise refused[0]
        try:
            found = of_live_program(program)
        except Unsuited as error:
            errors.append(error)
            continue
        except NotExpressed as error:
            refused = error, changes
            errors.append(error)
            continue
        if known is None:
            known = found, size
        elif _layers(found) == _layers(known[0]):
            return _with_original(known[0], own, known[1])
        else:
            break
    return None


def _layers(found: Found) -> list[object]:
    """Return the layers of a network and their connections, without weights."""
    return [
        (step.operation.layer if isinstance(step.operation, Layered) else step.operation.kind,
         step.reads, step.value)
        for step in found.graph.steps
    ]  # fmt: skip


def _with_original(found: Found, module: Any, size: int) -> Found:
    """Return the network of a module that was exported for a size, with the module beside it."""
    return replace(found, original=_original(found, module, Vec3.of(size)))


def _original(found: Found, module: Any, size: Vec3) -> Original | str:
    """Return a module that was exported for inputs of some size as the original network."""
    if isinstance(found.original, str):
        return found.original
    # Modules take other sizes, too, unless they crop by how much depends on the size.
    crops = found.graph.margin != NO_PADDING
    return replace(found.original, run=_runner(module), size=size if crops else None)


class _NotExported(InvalidInput):
    """A module that PyTorch cannot export for inputs of a size."""


def _exported(module: Any, maps: int, size: int, extents: Any) -> Any:
    """Return the exported program of a module.

    Args:
        maps: the maps of an input.
        size: its extents.
        extents: ``AUTO``: for inputs of any extents, if the module takes these. None: for those of
            the input.

    Raises:
        _NotExported: PyTorch cannot export it for such an input.
    """
    import torch

    inputs = torch.zeros(1, maps, size, size, size)
    free = dict.fromkeys((2, 3, 4), extents)
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
