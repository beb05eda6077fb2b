"""The plans and the data set of nnU-Net 2: ``plans.json`` and ``dataset.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from znni.core.errors import InvalidInput
from znni.core.text import counted
from znni.core.voxel_size import VoxelSize
from znni.importing.nnunet_folder import DATASET, PLANS
from znni.network.case_rules import (
    CaseRules,
    Orientation,
    PreviousStage,
    ResampleRule,
    Slices,
    SplineOrder,
    VoxelsFrom,
)
from znni.network.input_scaling import Fixed, InputScaling, Normalization, Percentiles, ZScore

# nnU-Net's functions that resample, and its readers of images with the orientation that they give.
# The reader of TIFF takes the size of voxels from a file beside the image.
SPLINE, TORCH = "resample_data_or_seg_to_shape", "resample_torch_fornnunet"
TIFF = "Tiff3DIO"
READERS: dict[str, Orientation] = {
    "SimpleITKIO": "stored",
    "SimpleITKIOWithReorient": "RAS",
    "NibabelIO": "stored",
    "NibabelIOWithReorient": "RAS",
    TIFF: "stored",
}

AS_IT_IS = Fixed(0.0, 1.0)  # the normalization that changes nothing

Model = TypeVar("Model", bound=BaseModel)


class Architecture(BaseModel):
    """The class of a network, and its arguments."""

    network_class_name: str
    arch_kwargs: dict[str, Any]


class Resampler(BaseModel):
    """The arguments of nnU-Net's resampling. The last ones do not change the result."""

    model_config = ConfigDict(extra="forbid")

    order: SplineOrder = 3
    order_z: SplineOrder = 0
    force_separate_z: bool | None = None
    separate_z_anisotropy_threshold: Literal[3] = 3
    is_seg: bool = False
    num_threads: int = 4
    memefficient_seg_resampling: bool = False
    device: object = None


class Configuration(BaseModel):
    """The windows, voxels and normalization that a network is trained for."""

    model_config = ConfigDict(extra="allow")

    patch_size: list[int]
    spacing: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    normalization_schemes: list[str]
    use_mask_for_norm: list[bool]
    architecture: Architecture
    previous_stage: str | None = None
    resampling_fn_data: str = SPLINE
    resampling_fn_data_kwargs: Resampler = Resampler()
    resampling_fn_seg: str = SPLINE
    resampling_fn_seg_kwargs: dict[str, Any] = {"order": 1}
    resampling_fn_probabilities: str = SPLINE
    resampling_fn_probabilities_kwargs: Resampler = Resampler(order=1)


class _Intensities(BaseModel):
    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float


class Plans(BaseModel):
    """The content of ``plans.json``."""

    transpose_forward: tuple[int, int, int]
    image_reader_writer: str = "SimpleITKIO"
    configurations: dict[str, dict[str, Any]]
    foreground_intensity_properties_per_channel: dict[str, _Intensities]


class Dataset(BaseModel):
    """The content of ``dataset.json``."""

    labels: Annotated[
        dict[str, int | Annotated[list[int], Field(min_length=1)]], Field(min_length=1)
    ]
    regions_class_order: list[int] | None = None
    file_ending: str = ".nii.gz"
    channel_names: dict[str, str] | None = None
    modality: dict[str, str] | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the input maps, in order."""
        names = self.channel_names or self.modality or {}
        return tuple(names[key] for key in sorted(names, key=lambda key: (len(key), key)))

    @property
    def foreground(self) -> tuple[int, ...]:
        """All labels but that of the background, in order."""
        given = (label for name, label in self.labels.items() if name != "ignore")
        each = (label if isinstance(label, list) else [label] for label in given)
        return tuple(sorted({label for labels in each for label in labels if label}))

    def labels_before(self, configuration: Configuration) -> tuple[int, ...]:
        """Return the labels of the previous stage, each of which is a further input map."""
        return self.foreground if configuration.previous_stage else ()


class _Older(BaseModel):
    """The architecture in plans that were written before version 2.4."""

    patch_size: list[int]
    UNet_class_name: str
    UNet_base_num_features: int
    unet_max_num_features: int
    n_conv_per_stage_encoder: list[int]
    n_conv_per_stage_decoder: list[int]
    conv_kernel_sizes: list[Any]
    pool_op_kernel_sizes: list[Any]


def read_json(path: Path, model: type[Model]) -> Model:
    """Return a JSON file of nnU-Net.

    Raises:
        InvalidInput: it cannot be read, or is not as nnU-Net writes it.
    """
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


def configuration_of(plans: Plans, name: str) -> Configuration:
    """Return a configuration of the plans, with what it inherits.

    Raises:
        InvalidInput: there is none of this name, or it is wrong.
    """
    entry: dict[str, Any] = {}
    at: Any = name
    seen: list[Any] = []
    while at is not None and at not in seen:
        if not isinstance(at, str) or at not in plans.configurations:
            raise InvalidInput(f"{PLANS} has no configuration {at!r}, which its network has")
        seen.append(at)
        entry = plans.configurations[at] | entry
        at = plans.configurations[at].get("inherits_from")
    if "architecture" not in entry and "UNet_class_name" in entry:
        entry["architecture"] = _older_architecture(_valid(_Older, entry, name))
    config = _valid(Configuration, entry, name)
    axes = 2 if len(config.patch_size) == 2 else 3
    for key, values in (("patch_size", config.patch_size), ("spacing", config.spacing)):
        if len(values) != axes:
            raise InvalidInput(f"{PLANS}: configuration {name} has a wrong {key}: {values}")
    return config


def _valid(model: type[Model], entry: Mapping[str, Any], name: str) -> Model:
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise InvalidInput(f"{PLANS}: configuration {name} has a wrong or no {where}") from None


def _older_architecture(older: _Older) -> dict[str, Any]:
    """Return the architecture of plans that were written before version 2.4."""
    convolutions = older.n_conv_per_stage_encoder
    stages = len(convolutions)
    axes = len(older.patch_size)
    base, most = older.UNet_base_num_features, older.unet_max_num_features
    plain = older.UNet_class_name == "PlainConvUNet"
    return {
        "network_class_name": older.UNet_class_name,
        "arch_kwargs": {
            "n_stages": stages,
            "features_per_stage": [min(base * 2**stage, most) for stage in range(stages)],
            "conv_op": f"Conv{axes}d",
            "kernel_sizes": older.conv_kernel_sizes,
            "strides": older.pool_op_kernel_sizes,
            "n_conv_per_stage" if plain else "n_blocks_per_stage": convolutions,
            "n_conv_per_stage_decoder": older.n_conv_per_stage_decoder,
            "conv_bias": True,
            "norm_op": f"InstanceNorm{axes}d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "nonlin": "LeakyReLU",
            "nonlin_kwargs": {"inplace": True},
        },
    }


class Heads(NamedTuple):
    """The output maps of a network.

    Attributes:
        labels: the name and the label of each map.
        regions: whether the maps are of regions, which may overlap.
    """

    labels: tuple[tuple[str, int], ...]
    regions: bool


def heads_of(dataset: Dataset) -> Heads:
    """Return the output maps.

    Raises:
        InvalidInput: the maps are of regions, and not each region has a label.
    """
    given = {name: label for name, label in dataset.labels.items() if name != "ignore"}
    if any(isinstance(label, list) and len(label) > 1 for label in given.values()):
        regions = [name for name, label in given.items() if label not in (0, [0])]
        order = dataset.regions_class_order or []
        if len(order) != len(regions):
            raise InvalidInput(
                f"{DATASET} has {counted(len(regions), 'region')} and a regions_class_order of "
                f"{len(order)}; give a label for each region"
            )
        return Heads(tuple(zip(regions, order, strict=True)), True)
    labels = {name: label[0] if isinstance(label, list) else label for name, label in given.items()}
    return Heads(tuple(sorted(labels.items(), key=lambda item: item[1])), False)


def case_of(
    plans: Plans, dataset: Dataset, configuration: Configuration
) -> tuple[CaseRules | None, tuple[str, ...]]:
    """Return the steps of a whole case, and notes for the user.

    There are no steps if images are read or resampled in a way that is not known here.
    """
    unknown = "so it runs over prepared volumes, and not over whole cases"
    if (reader := plans.image_reader_writer) not in READERS:
        return None, (f"{PLANS} reads images by {reader}, which znni does not, {unknown}",)
    functions = {configuration.resampling_fn_data, configuration.resampling_fn_probabilities}
    if configuration.previous_stage:
        functions.add(configuration.resampling_fn_seg)
    if foreign := functions - {SPLINE, TORCH}:
        return None, (f"{PLANS} resamples by {min(foreign)}, which znni does not, {unknown}",)
    image = _resample_rule(
        configuration.resampling_fn_data, configuration.resampling_fn_data_kwargs
    )
    output = _resample_rule(
        configuration.resampling_fn_probabilities, configuration.resampling_fn_probabilities_kwargs
    )
    stage = None
    if name := configuration.previous_stage:
        given = _valid(Resampler, configuration.resampling_fn_seg_kwargs, name)
        labels = _resample_rule(configuration.resampling_fn_seg, given)
        stage = PreviousStage(name, dataset.foreground, labels)
    ending, orientation = dataset.file_ending, READERS[reader]
    voxels: VoxelsFrom = "json" if reader == TIFF else "file"
    return CaseRules(dataset.channels, ending, orientation, image, output, stage, voxels), ()


def _resample_rule(function: str, arguments: Resampler) -> ResampleRule:
    """Return the rule of a resampling function of nnU-Net."""
    slices: Slices = "auto"
    if arguments.force_separate_z is not None:
        slices = "always" if arguments.force_separate_z else "never"
    if function == TORCH:  # it has no orders: it is linear, and nearest across slices
        return ResampleRule(1, 0, slices)
    return ResampleRule(arguments.order, arguments.order_z, slices)


def scaling_of(
    plans: Plans, configuration: Configuration, dataset: Dataset
) -> tuple[InputScaling, tuple[str, ...]]:
    """Return how the input is normalized, and notes for the user.

    Maps of the previous stage's labels stay as they are.

    Raises:
        InvalidInput: a normalization is unknown, or nothing here does the same.
    """
    schemes, masked = configuration.normalization_schemes, configuration.use_mask_for_norm
    maps = len(dataset.channels)
    if not len(schemes) == len(masked) == maps:
        raise InvalidInput(
            f"{PLANS} normalizes {counted(len(schemes), 'map')}, says of {len(masked)} whether a "
            f"mask counts, and {DATASET} names {maps}; give the folder's own files"
        )
    rules = tuple(_rule(scheme, plans, index) for index, scheme in enumerate(schemes))
    scored = [by for rule, by in zip(rules, masked, strict=True) if isinstance(rule, ZScore)]
    rules += (AS_IT_IS,) * len(dataset.labels_before(configuration))
    if not any(scored):
        return InputScaling(normalize=rules, crop="nonzero"), ()
    if not all(scored) or not all(isinstance(rule, ZScore) or _keeps_0(rule) for rule in rules):
        raise InvalidInput(
            f"{PLANS} normalizes some maps where they are not 0, and others everywhere, which "
            f"znni does not; normalize the volume yourself"
        )
    holes = (
        "nnU-Net also normalizes voxels of 0 that others surround; znni does so for whole cases "
        "alone"
    )
    return InputScaling(normalize=rules, within="nonzero", crop="nonzero"), (holes,)


def _keeps_0(rule: Normalization) -> bool:
    return isinstance(rule, Fixed) and rule.mean == 0 and rule.clip is None


def _rule(scheme: str, plans: Plans, index: int) -> Normalization:
    match scheme:
        case "ZScoreNormalization":
            return ZScore()
        case "NoNormalization":
            return AS_IT_IS
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


def spacing_of(configuration: Configuration, to_input: Sequence[int], *, planar: bool) -> VoxelSize:
    """Return the extents of the voxels that a network was trained on.

    nnU-Net stores no unit. Medical images are in millimetres, and others in units of their own.

    Args:
        configuration: a 3D configuration.
        to_input: the axis of the network that each axis of the input becomes.
        planar: whether the network is 2D. Then slices may lie at any distance.
    """
    z, y, x = (configuration.spacing[axis] for axis in to_input)
    return VoxelSize((z, y, x), free="zyx"[to_input.index(0)] if planar else "")


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the axis of the network that each axis of the input becomes.

    Raises:
        InvalidInput: it is no order of the three axes.
    """
    if sorted(permutation) != [0, 1, 2]:
        raise InvalidInput(
            f"{PLANS}: transpose_forward is {list(permutation)}; an order of the axes 0, 1, 2 is "
            f"expected"
        )
    return tuple(permutation.index(axis) for axis in range(3))
