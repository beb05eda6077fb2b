"""Results folders of nnU-Net 2, as networks: ``plans.json``, ``dataset.json`` and the folds.

The network is built by ``dynamic_network_architectures``, from the classes named here only. Its
parameters are read as tensors, so nothing of the folder is executed. Several folds become one
network that averages their outputs, as nnU-Net's predictor does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.importing.axis_order import in_order
from znni.importing.steps import Affine, Found, Graph, Joining, Operation, Original, Settings, Step
from znni.importing.torch_checkpoint import read_held
from znni.importing.torch_module import read_module
from znni.network.input_scaling import Fixed, InputScaling, Normalization, Percentiles, ZScore
from znni.network.network import INPUT
from znni.network.weights import Float32
from znni.network.window import Window

PLANS, DATASET = "plans.json", "dataset.json"
CHECKPOINT = "checkpoint_final.pth"
ARCHITECTURES = ("PlainConvUNet", "ResidualEncoderUNet", "ResidualUNet")
MODULES = (
    "Conv3d", "InstanceNorm3d", "BatchNorm3d", "Dropout3d", "LeakyReLU", "ReLU", "ELU", "GELU",
    "SiLU",
)  # fmt: skip
CLASSES = ("conv_op", "norm_op", "dropout_op", "nonlin")  # arguments that are classes
NNUNET = "pip install 'znni[nnunet]'"
OVERLAP = 0.5  # of windows, in nnU-Net's predictor unless told otherwise


class _Architecture(BaseModel):
    network_class_name: str
    arch_kwargs: dict[str, Any]


class _Configuration(BaseModel):
    model_config = ConfigDict(extra="allow")

    patch_size: list[int]
    spacing: list[float]
    normalization_schemes: list[str]
    use_mask_for_norm: list[bool]
    architecture: _Architecture
    previous_stage: str | None = None


class _Intensities(BaseModel):
    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float


class _Plans(BaseModel):
    transpose_forward: tuple[int, int, int]
    configurations: dict[str, dict[str, Any]]
    foreground_intensity_properties_per_channel: dict[str, _Intensities]


class _Dataset(BaseModel):
    labels: dict[str, int | list[int]]
    channel_names: dict[str, str] | None = None
    modality: dict[str, str] | None = None


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


def is_results(folder: Path) -> bool:
    """Return whether a folder has results of nnU-Net, or is one of its folds."""
    return any((place / PLANS).is_file() for place in (folder, folder.parent))


def read_results(folder: Path) -> Found:
    """Return the network of a results folder, with its windows, labels and normalization.

    Args:
        folder: the folder with ``plans.json``, for all its folds, or one of its folds.

    Raises:
        InvalidInput: a file is missing, or is not as nnU-Net writes it. Or the network is of an
            unknown class, of two dimensions, or the second stage of a cascade.
    """
    missing = [name for name in ("torch", "dynamic_network_architectures") if not find_spec(name)]
    if missing:
        raise InvalidInput(f"needs {' and '.join(missing)}, not installed here: {NNUNET}")
    place = folder if (folder / PLANS).is_file() else folder.parent
    plans, dataset = _read(place / PLANS, _Plans), _read(place / DATASET, _Dataset)
    folds = [_fold(path) for path in _folds(folder)]
    if len({(fold.configuration, fold.mirrored) for fold in folds}) > 1:
        raise InvalidInput("its folds differ in configuration or mirroring; give one of them")
    first = folds[0]
    configuration = _configuration(plans, first.configuration)
    to_input = _inverse(plans.transpose_forward)
    maps = len(dataset.channel_names or dataset.modality or {})
    heads, labels, notes = _heads(dataset)
    modules = [_module(configuration, to_input, maps, heads, fold) for fold in folds]
    found = [read_module(module) for module in modules]
    scaling, more = _scaling(plans, configuration, maps)
    window = Window(
        in_order(configuration.patch_size, to_input),
        OVERLAP,
        mirror="".join("zyx"[plans.transpose_forward[axis]] for axis in first.mirrored),
        like="nnunet",
    )
    notes += (*more, _on_spacing(configuration, to_input))
    if len(folds) > 1:
        notes += (f"the outputs of {counted(len(folds), 'fold')} are averaged",)
    graph = _averaged([one.graph for one in found], [fold.name for fold in folds], heads)
    return Found(
        graph,
        Original("PyTorch", _mean_of([one.original for one in found])),
        notes,
        Settings(scaling, window, labels),
    )


def _read(path: Path, model: Any) -> Any:
    """Return a JSON file of nnU-Net."""
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the top"
        raise InvalidInput(
            f"{path.name} is not as nnU-Net 2 writes it: wrong or missing at {where} "
            f"({problem['msg']})"
        ) from None


def _folds(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder's folds, or of one fold."""
    if (folder / CHECKPOINT).is_file():
        return [folder / CHECKPOINT]
    found = sorted(folder.glob(f"fold_*/{CHECKPOINT}"))
    numbered = [path for path in found if path.parent.name != "fold_all"]
    if not found:
        raise InvalidInput(f"has no fold_*/{CHECKPOINT}; finish a training, or give its fold")
    return numbered or found


def _fold(path: Path) -> _Fold:
    try:
        held = read_held(path)
    except InvalidInput as error:
        raise InvalidInput(f"{path.parent.name}/{path.name} {error}") from None
    try:
        given = held["init_args"]["configuration"]
        mirrored = held["inference_allowed_mirroring_axes"] or ()
        tensors = held["network_weights"]
        return _Fold(path.parent.name, given, tuple(map(int, mirrored)), dict(tensors))
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(
            f"{path.parent.name}/{path.name} is not as nnU-Net 2 writes it; give its own file"
        ) from None


def _configuration(plans: _Plans, name: str) -> _Configuration:
    """Return a configuration of the plans, with what it inherits."""
    entry: dict[str, Any] = {}
    at: str | None = name
    seen: list[str] = []
    while at is not None and at not in seen:
        if at not in plans.configurations:
            raise InvalidInput(f"{PLANS} has no configuration {at!r}, which its network has")
        seen.append(at)
        entry = plans.configurations[at] | entry
        at = plans.configurations[at].get("inherits_from")
    if "architecture" not in entry and "UNet_class_name" in entry:
        entry["architecture"] = _older_architecture(entry)
    try:
        found = _Configuration.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InvalidInput(f"{PLANS}: configuration {name} has a wrong or no {where}") from None
    if len(found.patch_size) != 3:
        raise InvalidInput(f"configuration {name} is of two dimensions; give a 3D configuration")
    if found.previous_stage:
        raise InvalidInput(
            f"configuration {name} also takes the labels of {found.previous_stage}; give a network "
            f"that takes the image alone, such as 3d_fullres"
        )
    return found


def _older_architecture(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the architecture of plans that were written before version 2.4."""
    convolutions = entry["n_conv_per_stage_encoder"]
    stages = len(convolutions)
    base, most = entry["UNet_base_num_features"], entry["unet_max_num_features"]
    kind = entry["UNet_class_name"]
    blocks = "n_conv_per_stage" if kind == "PlainConvUNet" else "n_blocks_per_stage"
    return {
        "network_class_name": kind,
        "arch_kwargs": {
            "n_stages": stages,
            "features_per_stage": [min(base * 2**stage, most) for stage in range(stages)],
            "conv_op": "Conv3d",
            "kernel_sizes": entry["conv_kernel_sizes"],
            "strides": entry["pool_op_kernel_sizes"],
            blocks: convolutions,
            "n_conv_per_stage_decoder": entry["n_conv_per_stage_decoder"],
            "conv_bias": True,
            "norm_op": "InstanceNorm3d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "nonlin": "LeakyReLU",
            "nonlin_kwargs": {"inplace": True},
        },
    }


def _module(
    configuration: _Configuration, to_input: Sequence[int], maps: int, heads: int, fold: _Fold
) -> Any:
    """Return the network of a fold, with its axes in the order of the input."""
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
    for key in ("kernel_sizes", "strides"):
        given[key] = [
            in_order(each, to_input) if isinstance(each, list) else each for each in given[key]
        ]
    axes = [0, 1, *(2 + axis for axis in to_input)]
    tensors = {
        key.removeprefix("module.").removeprefix("_orig_mod."): (
            tensor.permute(axes).contiguous() if tensor.ndim == 5 else tensor
        )
        for key, tensor in fold.tensors.items()
    }
    try:
        module = getattr(unet, name)(
            input_channels=maps, num_classes=heads, **given | {"deep_supervision": False}
        )
        module.load_state_dict(tensors)
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
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


def _heads(dataset: _Dataset) -> tuple[int, tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Return the number of output maps, the label of each, and what there is to note."""
    given = {name: label for name, label in dataset.labels.items() if name != "ignore"}
    if any(isinstance(label, list) and len(label) > 1 for label in given.values()):
        regions = [name for name, label in given.items() if label not in (0, [0])]
        note = (
            f"its maps are regions that overlap ({', '.join(regions)}): "
            f"{option('threshold', 0)} stores each, and labels by the largest map do not apply"
        )
        return len(regions), (), (note,)
    labels = {name: label[0] if isinstance(label, list) else label for name, label in given.items()}
    in_order = sorted(labels.items(), key=lambda item: item[1])
    return len(in_order), tuple(in_order), ()


def _scaling(
    plans: _Plans, configuration: _Configuration, maps: int
) -> tuple[InputScaling, tuple[str, ...]]:
    """Return how the input is normalized, and what there is to note."""
    schemes, masked = configuration.normalization_schemes, configuration.use_mask_for_norm
    if len(schemes) != maps:
        raise InvalidInput(
            f"{PLANS} normalizes {counted(len(schemes), 'map')}, and {DATASET} names {maps}"
        )
    rules = tuple(_rule(scheme, plans, index) for index, scheme in enumerate(schemes))
    scored = [by for rule, by in zip(rules, masked, strict=True) if isinstance(rule, ZScore)]
    notes: tuple[str, ...] = (
        "nnU-Net first cuts off borders where all maps are 0. znni does not: cut them off yourself "
        "if the volume has any",
    )
    if not any(scored):
        return InputScaling(normalize=rules), notes
    if len(scored) < len(rules) or not all(scored):
        raise InvalidInput(
            f"{PLANS} normalizes some maps where they are not 0, and others everywhere, which "
            f"znni does not; normalize the volume yourself"
        )
    holes = "nnU-Net also normalizes voxels of 0 that others surround; znni leaves them 0"
    return InputScaling(normalize=rules, within="nonzero"), (*notes, holes)


def _rule(scheme: str, plans: _Plans, index: int) -> Normalization:
    match scheme:
        case "ZScoreNormalization":
            return ZScore()
        case "NoNormalization":
            return Fixed(0.0, 1.0)
        case "RescaleTo01Normalization":
            return Percentiles(0.0, 100.0)
        case "RGBTo01Normalization":
            return Fixed(0.0, 255.0)
        case "CTNormalization":
            by = plans.foreground_intensity_properties_per_channel.get(str(index))
            if by:
                bounds = (by.percentile_00_5, by.percentile_99_5)
                return Fixed(by.mean, max(by.std, 1e-8), bounds)
    raise InvalidInput(f"{PLANS}: map {index} is normalized by {scheme}, which is not known here")


def _on_spacing(configuration: _Configuration, to_input: Sequence[int]) -> str:
    spacing = [configuration.spacing[axis] for axis in to_input]
    extents = " x ".join(f"{extent:g}" for extent in spacing)
    return (
        f"the network expects voxels of {extents} (z, y, x, as a rule in millimetres). znni does "
        f"not resample: do so first if the volume's voxels differ"
    )


def _inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the axis of the network that each axis of the input becomes."""
    if sorted(permutation) != [0, 1, 2]:
        raise InvalidInput(
            f"{PLANS}: transpose_forward is {list(permutation)}; an order of the axes 0, 1, 2 is "
            f"expected"
        )
    return tuple(permutation.index(axis) for axis in range(3))


def _averaged(graphs: Sequence[Graph], names: Sequence[str], maps: int) -> Graph:
    """Return a graph whose outputs are the means of those of several graphs."""
    if len(graphs) == 1:
        return graphs[0]
    steps: list[Step] = []
    total = ""
    for graph, name in zip(graphs, names, strict=True):
        steps += _renamed(graph.steps, name)
        (output,) = graph.outputs
        share = Affine(f"share of {name}", np.full(maps, 1 / len(graphs)), np.zeros(maps))
        steps.append(Step(share, (f"{name}/{output}",), f"{name}/share"))
        if not total:
            total = f"{name}/share"
            continue
        joined = Joining(f"mean with {name}", "add")
        steps.append(Step(joined, (total, f"{name}/share"), f"{name}/sum"))
        total = f"{name}/sum"
    return Graph(graphs[0].maps, tuple(steps), (total,))


def _renamed(steps: Iterable[Step], name: str) -> Iterable[Step]:
    """Yield steps whose values and origins have a name before their own."""
    for step in steps:
        operation: Operation = replace(step.operation, origin=f"{name}: {step.operation.origin}")
        reads = tuple(read if read == INPUT else f"{name}/{read}" for read in step.reads)
        yield Step(operation, reads, f"{name}/{step.value}")


def _mean_of(originals: Sequence[Original | str]) -> Any:
    def run(x: Float32) -> Float32:
        outputs = [one.run(x) for one in originals if isinstance(one, Original)]
        return np.asarray(np.mean(outputs, axis=0, dtype=np.float64), np.float32)

    return run
