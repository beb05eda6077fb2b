"""Models of bioimage.io, as networks. Nothing of a package is executed.

Weights are read as ONNX, or as the state dict of a network of MONAI or pytorch-3dunet, or of layers
that a network file lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.shapes import ZERO, Vec3
from znni.core.text import counted
from znni.importing.axis_order import reordered
from znni.importing.bioimageio_description import (
    Architecture,
    Description,
    Tensor,
    Weights,
    described,
)
from znni.importing.bioimageio_files import Package, opened
from znni.importing.bioimageio_processing import (
    applied,
    input_scaling,
    output_steps,
    threshold_note,
)
from znni.importing.checks import NotExpressed
from znni.importing.known_networks import built, is_known, known_classes
from znni.importing.onnx_graph import read_onnx
from znni.importing.state_dict import fill
from znni.importing.steps import (
    Found,
    Graph,
    GraphSteps,
    Layered,
    Operation,
    Original,
    Sample,
    Settings,
)
from znni.importing.torch_checkpoint import read_checkpoint
from znni.importing.torch_module import read_module
from znni.network.layers import Normalize
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import Float32
from znni.network.window import Window

OF_ITSELF = "that is code, which znni does not run"
OVERLAP = 0.5  # of windows, if the model has no halo
TEST = "its test tensors"


def read_model(path: Path, like: Network | None) -> Found:
    """Return the network of a package, with scaling, windows and test tensors.

    Args:
        path: the zip, the folder, or the description in it.
        like: a network with the layers of the package's state dict and their connections.

    Raises:
        InvalidInput: the package is damaged or incomplete. Or it is of two dimensions, has several
            inputs, or needs something that znni does not have.
    """
    with opened(path) as package:
        model = described(package.description())
        if len(model.inputs) != 1:
            named = ", ".join(tensor.name for tensor in model.inputs)
            raise InvalidInput(f"has inputs {named}; znni runs networks with one")
        (given,) = model.inputs
        order = _order(given)
        for output in model.outputs:
            _check_order(output, given)
        contents = _weights(package, model, like)
        sample = _sample(package, model, order)
    if order != (0, 1, 2):
        contents = reordered(contents, order)
    graph, original = contents.graph, contents.original
    scaling, before = input_scaling(given, graph.maps)
    after, threshold, maps = _after(model, sample, graph)
    graph = _surrounded(graph, before, after)
    if isinstance(original, Original) and (before or any(after)):
        original = _surrounded_original(original, before, after, maps)
    window = _window(graph, model, sample)
    notes = (*contents.notes, *_notes(model, scaling.is_fixed, window))
    if threshold is not None:
        notes += (threshold_note(threshold),)
        sample = replace(sample, threshold=threshold)
    return Found(graph, original, notes, Settings(scaling, window), sample)


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Return the axes of the network that are z, y and x."""
    axes, space = tensor.axes, tensor.axes[2:]
    if len(axes) < 5 and set("yx") <= set(axes) and "z" not in axes:
        raise InvalidInput(
            f"is a model of two dimensions (its input {tensor.name} has the axes {axes}), and znni "
            f"computes volumes; give a model with the axes bczyx"
        )
    if axes[:2] != "bc" or sorted(space) != ["x", "y", "z"]:
        raise InvalidInput(
            f"its input {tensor.name} has the axes {axes!r}; those read here are b, c, and then z, "
            f"y and x in any order"
        )
    return tuple(space.index(axis) for axis in "zyx")


def _check_order(output: Tensor, given: Tensor) -> None:
    if output.axes != given.axes:
        raise InvalidInput(
            f"its output {output.name} has the axes {output.axes}, and its input {given.axes}; "
            f"both have to be the same"
        )


def _weights(package: Package, model: Description, like: Network | None) -> Found:
    """Return the network of a package's weights, as they are."""
    weights = model.weights
    if "onnx" in weights and like is None:
        for beside in filter(None, (one.external_data for one in weights.values())):
            package.file(beside)
        file = package.file(weights["onnx"])
        return _named("onnx", lambda: read_onnx(file))
    if "pytorch_state_dict" in weights:
        return _state_dict(package, weights["pytorch_state_dict"], like)
    if like:
        raise InvalidInput(
            f"has no weights as a state dict, which {option('like', 'NET.yaml')} is for; leave it "
            f"out"
        )
    of_code = f" (of TorchScript, {OF_ITSELF})" if "torchscript" in weights else ""
    raise InvalidInput(
        f"has weights as {', '.join(weights) or 'nothing'}{of_code}; those read here are onnx and "
        f"pytorch_state_dict: export it to ONNX and add that"
    )


def _named(kind: str, read: Callable[[], Found]) -> Found:
    """Read weights, and put their kind before the error."""
    try:
        return read()
    except InvalidInput as error:
        raised = NotExpressed if isinstance(error, NotExpressed) else InvalidInput
        raise raised(f"its weights as {kind}: {error}") from error.__cause__


def _state_dict(package: Package, source: Weights, like: Network | None) -> Found:
    file = package.file(source)

    def read() -> Found:
        arrays = read_checkpoint(file)
        if like:
            return fill(arrays, like, ordered=True)
        return read_module(_module(source.architecture, arrays))

    return _named("pytorch_state_dict", read)


def _module(architecture: Architecture | None, arrays: Mapping[str, Any]) -> Any:
    """Return a network of a known library, with the parameters of a state dict."""
    name = architecture.name if architecture else "no class"
    library = architecture.library.partition(".")[0] if architecture else ""
    if architecture is None or not is_known(library, name):
        where = architecture.library if architecture else ""
        origin = f"{name} of {where}" if where else f"{name} in a file of the package"
        raise InvalidInput(
            f"are those of {origin}; {OF_ITSELF}. Build it in Python and call "
            f"znni.import_network(model.eval(), 'net.yaml'), or give a network file with its "
            f"layers by {option('like', 'NET.yaml')}, or weights as onnx. Networks that are built "
            f"here are ({known_classes()})"
        )
    return built(library, name, architecture.given, arrays)


def _sample(package: Package, model: Description, order: Sequence[int]) -> Sample:
    """Return the test tensors; those of several outputs are joined along their maps."""
    arrays = [_test(package, tensor, order) for tensor in (*model.inputs, *model.outputs)]
    given, *outputs = arrays
    if len({output.shape[1:] for output in outputs}) > 1:
        raise InvalidInput("has outputs of different extents; znni gives one resolution")
    return Sample(TEST, given, np.concatenate(outputs))


def _test(package: Package, tensor: Tensor, order: Sequence[int]) -> Float32:
    """Return a test tensor (f, z, y, x)."""
    if tensor.test is None:
        raise InvalidInput(f"has no test tensor of {tensor.name}, as bioimage.io requires; add it")
    path = package.file(tensor.test)
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"its file {tensor.test.path} is no array of NumPy: {error}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 5 or array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"its file {tensor.test.path} is not an array of numbers with the axes {tensor.axes}"
        )
    return np.ascontiguousarray(array[0].transpose(0, *(1 + axis for axis in order)), np.float32)


def _after(
    model: Description, sample: Sample, graph: Graph
) -> tuple[list[tuple[Operation, ...]], float | None, list[int]]:
    """Return the steps after each output, the threshold after all, and the maps of each."""
    if len(graph.outputs) != len(model.outputs):
        raise InvalidInput(
            f"describes {counted(len(model.outputs), 'output')}, and its network has "
            f"{len(graph.outputs)}"
        )
    maps = [tensor.extents[1] for tensor in model.outputs]
    if len(maps) == 1:
        maps = [len(sample.output)]
    known = [count for count in maps if count]
    if len(known) < len(maps) or sum(known) != len(sample.output):
        raise InvalidInput(f"has outputs of {known} maps, and test tensors of {len(sample.output)}")
    both = [output_steps(*each) for each in zip(model.outputs, known, strict=True)]
    thresholds = {threshold for _, threshold in both}
    if len(thresholds) > 1:
        raise InvalidInput(
            "has thresholds that differ between its outputs, and znni has one; delete binarize "
            "from the description"
        )
    return [steps for steps, _ in both], thresholds.pop(), known


def _surrounded(
    graph: Graph, before: Sequence[Operation], after: Sequence[Sequence[Operation]]
) -> Graph:
    """Return a graph with steps before its first one, and after each output."""
    steps = GraphSteps()
    ends = steps.embed(graph, steps.chain(INPUT, before))
    ends = [steps.chain(end, each) for end, each in zip(ends, after, strict=True)]
    return replace(graph, steps=tuple(steps.steps), outputs=tuple(ends))


def _surrounded_original(
    original: Original,
    before: Sequence[Operation],
    after: Sequence[Sequence[Operation]],
    maps: Sequence[int],
) -> Original:
    """Return an original network with steps before it, and after each output."""

    def run(x: Float32) -> Float32:
        made = original.run(applied(x, before))
        outputs = np.split(made, np.cumsum(maps)[:-1])
        return np.concatenate(
            [applied(output, steps) for output, steps in zip(outputs, after, strict=True)]
        )

    return replace(original, run=run)


def _window(graph: Graph, model: Description, sample: Sample) -> Window | None:
    """Return the windows of a network that depends on them.

    They are as large as the model's fixed extents, or as its test tensors. They overlap by the
    halo on both sides.
    """
    operations = [step.operation for step in graph.steps if isinstance(step.operation, Layered)]
    if not any(isinstance(operation.layer, Normalize) for operation in operations):
        return None
    (given,) = model.inputs
    extents = [0 if extent is None else extent for extent in given.extents]
    fixed, tested = given.in_space(extents), Vec3(*sample.given.shape[1:])
    size = Vec3(*(one or other for one, other in zip(fixed, tested, strict=True)))
    halo = ZERO
    for output in model.outputs:
        halo = halo.maximum(output.in_space(output.halo))
    shares = [2 * edge / extent for edge, extent in zip(halo, size, strict=True)]
    return Window(size, max(shares) if 0 < max(shares) < 1 else OVERLAP)


def _notes(model: Description, is_fixed: bool, window: Window | None) -> tuple[str, ...]:
    """Return notes about a model for the user."""
    notes = []
    if not is_fixed:
        notes.append("statistics of a sample, or of a data set, are those of the whole volume here")
    if window:
        notes.append(
            f"the network depends on whole windows. The package does not say which it was trained "
            f"on: {window.size} are its fixed extents, or those of its test tensors. Its halo is "
            f"not cut off; windows are blended instead"
        )
    elif any(any(output.halo) for output in model.outputs):
        notes.append("its halo is not needed: the network is computed over the whole volume")
    return tuple(notes)
