"""The plans and the data set of nnU-Net 2: ``plans.json`` and ``dataset.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.core.voxel_size import VoxelSize
from znni.network.input_scaling import Fixed, InputScaling, Normalization, Percentiles, ZScore

PLANS, DATASET = "plans.json", "dataset.json"

Model = TypeVar("Model", bound=BaseModel)


class Architecture(BaseModel):
    """The class of a network, and its arguments."""

    network_class_name: str
    arch_kwargs: dict[str, Any]


class Configuration(BaseModel):
    """The windows, voxels and normalization that a network is trained for."""

    model_config = ConfigDict(extra="allow")

    patch_size: list[int]
    spacing: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    normalization_schemes: list[str]
    use_mask_for_norm: list[bool]
    architecture: Architecture
    previous_stage: str | None = None


class _Intensities(BaseModel):
    mean: float
    std: float
    percentile_00_5: float
    percentile_99_5: float


class Plans(BaseModel):
    """The content of ``plans.json``."""

    transpose_forward: tuple[int, int, int]
    configurations: dict[str, dict[str, Any]]
    foreground_intensity_properties_per_channel: dict[str, _Intensities]


class Dataset(BaseModel):
    """The content of ``dataset.json``."""

    labels: Annotated[
        dict[str, int | Annotated[list[int], Field(min_length=1)]], Field(min_length=1)
    ]
    channel_names: dict[str, str] | None = None
    modality: dict[str, str] | None = None

    @property
    def maps(self) -> int:
        """The number of input maps."""
        return len(self.channel_names or self.modality or {})


class _Older(BaseModel):
    """The architecture in plans that were written before version 2.4."""

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
        InvalidInput: there is none of this name, or it is wrong. Or it is of two dimensions, or the
            second stage of a cascade.
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
    found = _valid(Configuration, entry, name)
    if len(found.patch_size) == 2:
        raise InvalidInput(f"configuration {name} is of two dimensions; give a 3D configuration")
    for key, values in (("patch_size", found.patch_size), ("spacing", found.spacing)):
        if len(values) != 3:
            raise InvalidInput(f"{PLANS}: configuration {name} has a wrong {key}: {values}")
    if found.previous_stage:
        raise InvalidInput(
            f"configuration {name} also takes the labels of {found.previous_stage}; give a network "
            f"that takes the image alone, such as 3d_fullres"
        )
    return found


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
    base, most = older.UNet_base_num_features, older.unet_max_num_features
    plain = older.UNet_class_name == "PlainConvUNet"
    return {
        "network_class_name": older.UNet_class_name,
        "arch_kwargs": {
            "n_stages": stages,
            "features_per_stage": [min(base * 2**stage, most) for stage in range(stages)],
            "conv_op": "Conv3d",
            "kernel_sizes": older.conv_kernel_sizes,
            "strides": older.pool_op_kernel_sizes,
            "n_conv_per_stage" if plain else "n_blocks_per_stage": convolutions,
            "n_conv_per_stage_decoder": older.n_conv_per_stage_decoder,
            "conv_bias": True,
            "norm_op": "InstanceNorm3d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "nonlin": "LeakyReLU",
            "nonlin_kwargs": {"inplace": True},
        },
    }


def heads_of(dataset: Dataset) -> tuple[int, tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Return the number of output maps, the label of each, and notes for the user."""
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


def scaling_of(
    plans: Plans, configuration: Configuration, maps: int
) -> tuple[InputScaling, tuple[str, ...]]:
    """Return how the input is normalized, and notes for the user.

    Raises:
        InvalidInput: a normalization is unknown, or nothing here does the same.
    """
    schemes, masked = configuration.normalization_schemes, configuration.use_mask_for_norm
    if not len(schemes) == len(masked) == maps:
        raise InvalidInput(
            f"{PLANS} normalizes {counted(len(schemes), 'map')}, says of {len(masked)} whether a "
            f"mask counts, and {DATASET} names {maps}; give the folder's own files"
        )
    rules = tuple(_rule(scheme, plans, index) for index, scheme in enumerate(schemes))
    scored = [by for rule, by in zip(rules, masked, strict=True) if isinstance(rule, ZScore)]
    if not any(scored):
        return InputScaling(normalize=rules, crop="nonzero"), ()
    if not all(scored) or not all(isinstance(rule, ZScore) or _keeps_0(rule) for rule in rules):
        raise InvalidInput(
            f"{PLANS} normalizes some maps where they are not 0, and others everywhere, which "
            f"znni does not; normalize the volume yourself"
        )
    holes = "nnU-Net also normalizes voxels of 0 that others surround; znni leaves them 0"
    return InputScaling(normalize=rules, within="nonzero", crop="nonzero"), (holes,)


def _keeps_0(rule: Normalization) -> bool:
    return isinstance(rule, Fixed) and rule.mean == 0 and rule.clip is None


def _rule(scheme: str, plans: Plans, index: int) -> Normalization:
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


def spacing_of(configuration: Configuration, to_input: Sequence[int]) -> VoxelSize:
    """Return the extents of the voxels that a network was trained on.

    nnU-Net stores no unit. Medical images are in millimetres, and others in units of their own.
    """
    z, y, x = (configuration.spacing[axis] for axis in to_input)
    return VoxelSize((z, y, x))


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
