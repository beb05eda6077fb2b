"""Results folders of nnU-Net 2, as networks: ``plans.json``, ``dataset.json`` and the folds.

The network is built by ``dynamic_network_architectures``, from the classes named here only. Its
parameters are read as tensors, so nothing of the folder is executed. Several folds become one
network that averages their outputs, as nnU-Net's predictor does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.text import counted
from znni.importing.axis_order import in_order, reordered
from znni.importing.nnunet_folder import DATASET, PLANS, Results
from znni.importing.nnunet_planes import in_space, is_planar, tensors_in_space
from znni.importing.nnunet_plans import (
    Configuration,
    Dataset,
    Plans,
    case_of,
    configuration_of,
    heads_of,
    inverse,
    read_json,
    scaling_of,
    spacing_of,
)
from znni.importing.nnunet_postprocessing import postprocessing_of
from znni.importing.steps import Found, Graph, GraphSteps, Layered, Original, Settings, affine
from znni.importing.torch_checkpoint import read_held
from znni.importing.torch_module import read_module
from znni.network.layers import Add
from znni.network.node import INPUT
from znni.network.weights import Float32
from znni.network.window import Window

ARCHITECTURES = ("PlainConvUNet", "ResidualEncoderUNet", "ResidualUNet")
MODULES = (
    "Conv3d", "InstanceNorm3d", "BatchNorm3d", "Dropout3d", "LeakyReLU", "ReLU", "ELU", "GELU",
    "SiLU",
)  # fmt: skip
CLASSES = ("conv_op", "norm_op", "dropout_op", "nonlin")  # arguments that are classes
# Its dependencies may replace PyTorch, and nothing here needs them.
NNUNET = "pip install 'znni[torch]', and pip install --no-deps dynamic-network-architectures"
OVERLAP = 0.5  # of windows, in nnU-Net's predictor unless told otherwise


@dataclass(frozen=True)
class _Fold:
    """A trained network of the folder.

    Attributes:
        name: name of its folder.
        configuration: name of its configuration in the plans.
        mirrored: axes along which nnU-Net mirrors windows, as it transposes them.
        tensors: its parameters by name.
    """

    name: str
    configuration: str
    mirrored: tuple[int, ...]
    tensors: Mapping[str, Any]


def read_results(results: Results) -> Found:
    """Return the network of a results folder, with its windows, labels and normalization.

    Raises:
        InvalidInput: a file is missing, or is not as nnU-Net writes it. Or the network is of an
            unknown class.
    """
    missing = [name for name in ("torch", "dynamic_network_architectures") if not find_spec(name)]
    if missing:
        raise InvalidInput(f"needs {' and '.join(missing)}, not installed here: {NNUNET}")
    place = results.place
    plans, dataset = read_json(place / PLANS, Plans), read_json(place / DATASET, Dataset)
    folds = [_fold(checkpoint) for checkpoint in results.checkpoints]
    if len({(fold.configuration, fold.mirrored) for fold in folds}) > 1:
        raise InvalidInput("its folds differ in configuration or mirroring; give one of them")
    first = folds[0]
    configuration = configuration_of(plans, first.configuration)
    planar = is_planar(configuration)
    if planar:
        configuration = in_space(configuration)
        folds = [replace(fold, tensors=tensors_in_space(fold.tensors)) for fold in folds]
    to_input = inverse(plans.transpose_forward)
    heads = heads_of(dataset)
    scaling, more = scaling_of(plans, configuration, dataset)
    maps = len(dataset.channels) + len(dataset.labels_before(configuration))
    modules = [_module(configuration, maps, len(heads.labels), fold) for fold in folds]
    found = [read_module(module) for module in modules]
    mirrored = [axis + planar for axis in first.mirrored]
    if max(mirrored, default=0) > 2:
        raise InvalidInput(f"{first.name} is mirrored along an axis that its network does not have")
    window = Window(
        in_order(configuration.patch_size, to_input),
        OVERLAP,
        mirror="".join("zyx"[plans.transpose_forward[axis]] for axis in mirrored),
        like="nnunet",
    )
    spacing = spacing_of(configuration, to_input, planar=planar)
    case, unknown = case_of(plans, dataset, configuration)
    notes = (
        *more,
        *unknown,
        f"it expects voxels of {spacing} (z, y, x, as a rule in millimetres). znni infer refuses "
        f"others, unless it runs over whole cases, which are resampled",
    )
    notes += tuple(
        f"{file.relative_to(place)} is not applied; znni nnunet predict does so with -pp_pkl_file"
        for file in map(postprocessing_of, sorted(place.iterdir()))
        if file
    )
    if len(folds) > 1:
        notes += (f"the outputs of {counted(len(folds), 'fold')} are averaged",)
    names = [fold.name for fold in folds]
    graph = _averaged([one.graph for one in found], names, len(heads.labels))
    original = Original("PyTorch", _mean_of([one.original for one in found]))
    settings = Settings(scaling, window, heads.labels, heads.regions, spacing, case)
    return reordered(Found(graph, original, notes, settings), to_input)


def _fold(path: Path) -> _Fold:
    import torch

    try:
        held = read_held(path)
    except InvalidInput as error:
        raise InvalidInput(f"{path.parent.name}/{path.name} {error}") from None
    try:
        given = held["init_args"]["configuration"]
        mirrored = tuple(map(int, held.get("inference_allowed_mirroring_axes") or ()))
        tensors = dict(held["network_weights"])
        alike = all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
        if alike and set(mirrored) <= {0, 1, 2}:
            return _Fold(path.parent.name, given, mirrored, tensors)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # the error below says so
    raise InvalidInput(
        f"{path.parent.name}/{path.name} is not as nnU-Net 2 writes it; give its own file"
    )


def _module(configuration: Configuration, maps: int, heads: int, fold: _Fold) -> Any:
    """Return the network of a fold."""
    import torch
    from dynamic_network_architectures.architectures import unet

    name = configuration.architecture.network_class_name.rsplit(".", 1)[-1]
    if name not in ARCHITECTURES:
        raise InvalidInput(
            f"{PLANS}: the network is a {name}; those known here are {', '.join(ARCHITECTURES)}"
        )
    given = {
        key: _allowed(key, value) if key in CLASSES else value
        for key, value in configuration.architecture.arch_kwargs.items()
    }
    tensors = {
        key.removeprefix("module.").removeprefix("_orig_mod."): tensor
        for key, tensor in fold.tensors.items()
    }
    try:
        module = getattr(unet, name)(
            input_channels=maps, num_classes=heads, **given | {"deep_supervision": False}
        )
        module.load_state_dict(tensors)
    except Exception as error:  # wrong arguments make the library raise any kind
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidInput(
            f"{fold.name} has other parameters than the {name} of {PLANS}: {problem}; a trainer "
            f"that builds its own network is not read"
        ) from None
    return module.to(torch.float32).eval()


def _allowed(key: str, value: object) -> Any:
    """Return the class of a part of the network."""
    import torch

    if value is None:
        return None
    name = str(value).rsplit(".", 1)[-1]
    if name not in MODULES:
        raise InvalidInput(f"{PLANS}: {key} is {value}; those known here are {', '.join(MODULES)}")
    return getattr(torch.nn, name)


def _averaged(graphs: Sequence[Graph], names: Sequence[str], maps: int) -> Graph:
    """Return a graph whose outputs are the means of those of several graphs."""
    if len(graphs) == 1:
        return graphs[0]
    steps, share, total = GraphSteps(), np.full(maps, 1 / len(graphs)), ""
    for graph, name in zip(graphs, names, strict=True):
        (output,) = steps.embed(graph, INPUT, name)
        shared = steps.chain(output, [affine(f"share of {name}", share, np.zeros(maps))])
        joined = Layered(Add(f"mean with {name}"))
        total = steps.add(joined, total, shared) if total else shared
    return steps.graph(graphs[0].maps, total)


def _mean_of(originals: Sequence[Original | str]) -> Any:
    def run(x: Float32) -> Float32:
        outputs = [one.run(x) for one in originals if isinstance(one, Original)]
        return np.asarray(np.mean(outputs, axis=0, dtype=np.float64), np.float32)

    return run
