"""The transforms of MONAI bundles, as the steps of whole cases. Unknown ones are errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from znni.core.errors import InvalidInput
from znni.core.option_types import BlendedActivation
from znni.importing.monai_config import Component, Expression
from znni.network.case_rules import (
    Align,
    Orientation,
    ScaleRange,
    SplineOrder,
    Standardize,
    Stretch,
    ValueStep,
)

# The orders of splines by MONAI's names.
ORDERS: dict[Any, SplineOrder] = {"nearest": 0, "bilinear": 1, 0: 0, 1: 1, 3: 3}

# Arguments of all transforms that do not change the result.
COMMON = ("keys", "allow_missing_keys", "meta_keys", "meta_key_postfix", "lazy", "device")

# Transforms that change neither values nor voxels, before and after the network.
LOADING = (
    "LoadImage", "EnsureChannelFirst", "AddChannel", "EnsureType", "ToTensor", "CastToType",
    "ToDevice",
)  # fmt: skip
SAVING = ("SaveImage", "EnsureType", "ToTensor", "CastToType", "ToDevice", "DeleteItems")
KNOWN_BEFORE = (
    *LOADING, "Orientation", "Spacing", "ScaleIntensityRange", "ScaleIntensity",
    "NormalizeIntensity",
)  # fmt: skip
KNOWN_AFTER = (*SAVING, "Activations", "Invert", "AsDiscrete", "KeepLargestConnectedComponent")


def plain_name(name: str) -> str:
    """Return the name of a transform without the ending that says that it takes a dictionary."""
    known = {*KNOWN_BEFORE, *KNOWN_AFTER}
    endings = ("Dict", "d", "D")
    return next((name.removesuffix(it) for it in endings if name.removesuffix(it) in known), name)


@dataclass
class Before:
    """The steps before the network.

    Attributes:
        orientation: how the axes of a scan are turned.
        spacing: the extents of the voxels (x, y, z); None: the scan is not resampled.
        values: the changes of values after that.
    """

    orientation: Orientation = "stored"
    spacing: tuple[float, float, float] | None = None
    order: SplineOrder = 1
    values: list[ValueStep] = field(default_factory=list)

    @property
    def align(self) -> Align:
        """The part of a scan that keeps its place when the scan is resampled."""
        return "first" if self.spacing else "none"


def steps_before(transforms: Iterable[Component]) -> Before:
    """Return the steps that transforms before the network stand for.

    Raises:
        InvalidInput: a transform, an argument or an order is not known here.
    """
    steps = Before()
    for transform in transforms:
        name = plain_name(transform.name)
        match name:
            case "Orientation":
                _check_first(steps, transform)
                steps.orientation = _orientation(transform)
            case "Spacing":
                _check_first(steps, transform)
                steps.spacing, steps.order = _spacing(transform)
            case "ScaleIntensityRange":
                steps.values.append(_scale_range(transform))
            case "ScaleIntensity":
                steps.values.append(_stretch(transform))
            case "NormalizeIntensity":
                steps.values.append(_standardize(transform))
            case _ if name in LOADING:
                _check_type(transform)
            case _:
                raise InvalidInput(
                    f"its preprocessing has {transform.name}, which znni does not have; known are "
                    f"{', '.join(KNOWN_BEFORE)}"
                )
    return steps


def _check_first(found: Before, transform: Component) -> None:
    """Check that nothing was resampled, and no value changed, before a transform of voxels."""
    if found.spacing or found.values:
        raise InvalidInput(
            f"its preprocessing has {transform.name} after other changes of voxels or values; znni "
            f"does Orientation, Spacing and changes of values in this order"
        )


def _check_type(transform: Component) -> None:
    """Check that a transform gives float32."""
    dtype = str(transform.arguments.get("dtype", "float32"))
    if not dtype.endswith(("float32", "None")):
        raise InvalidInput(f"{transform.name} gives {dtype}, and znni computes in float32")


def _orientation(transform: Component) -> Orientation:
    transform.check(*COMMON, "axcodes", as_closest_canonical=(False, True), labels=(None,))
    axes, canonical = transform.values(axcodes=None, as_closest_canonical=False)
    if axes != "RAS" and not canonical:
        raise InvalidInput(f"its Orientation is {axes}, and znni turns scans to RAS only")
    return "RAS"


def _spacing(transform: Component) -> tuple[tuple[float, float, float], SplineOrder]:
    transform.check(
        *COMMON, "pixdim", "mode", "align_corners", "dtype", "recompute_affine",
        "ensure_same_shape",
        padding_mode=("border", ["border"]), diagonal=(False,), scale_extent=(False,),
        min_pixdim=(None,), max_pixdim=(None,),
    )  # fmt: skip
    pixdim, mode = transform.values(pixdim=None, mode="bilinear")
    given = list(pixdim) if isinstance(pixdim, list) else [pixdim]
    mode = mode[0] if isinstance(mode, list) and mode else mode
    if not 1 <= len(given) <= 3 or not all(_is_number(each) and each > 0 for each in given):
        raise InvalidInput(f"its Spacing has pixdim {pixdim}; three numbers above 0 are expected")
    if isinstance(mode, list) or mode not in ORDERS:
        known = ", ".join(map(str, ORDERS))
        raise InvalidInput(f"its Spacing has mode {mode}, which znni does not have; known: {known}")
    x, y, z = map(float, [*given, *given[-1:] * (3 - len(given))])
    return (x, y, z), ORDERS[mode]


def _scale_range(transform: Component) -> ScaleRange:
    transform.check(*COMMON, "a_min", "a_max", "b_min", "b_max", "clip", "dtype")
    _check_type(transform)
    low, high, new_low, new_high, clip = transform.values(
        a_min=None, a_max=None, b_min=None, b_max=None, clip=False
    )
    if new_low is None and new_high is None:  # nothing is clipped then
        new_low, new_high, clip = 0.0, 1.0, False
    numbers = low, high, new_low, new_high
    if not all(map(_is_number, numbers)):
        raise InvalidInput(f"its {transform.name} has bounds {numbers}; four numbers are expected")
    a, b, c, d = map(float, numbers)
    return ScaleRange((a, b), (c, d), bool(clip))


def _stretch(transform: Component) -> Stretch:
    transform.check(*COMMON, "minv", "maxv", "channel_wise", "dtype", factor=(None,))
    _check_type(transform)
    low, high, each = transform.values(minv=0.0, maxv=1.0, channel_wise=False)
    if not _is_number(low) or not _is_number(high):
        raise InvalidInput(f"its {transform.name} has bounds {low}, {high}; numbers are expected")
    return Stretch((float(low), float(high)), bool(each))


def _standardize(transform: Component) -> ValueStep:
    transform.check(*COMMON, "subtrahend", "divisor", "nonzero", "channel_wise", "dtype")
    _check_type(transform)
    mean, deviation, nonzero, each = transform.values(
        subtrahend=None, divisor=None, nonzero=False, channel_wise=False
    )
    if mean is None and deviation is None:
        return Standardize(bool(nonzero), bool(each))
    if not _is_number(mean) or not _is_number(deviation) or deviation == 0 or nonzero or each:
        raise InvalidInput(
            f"its {transform.name} has subtrahend {mean} and divisor {deviation}; znni takes one "
            f"number for each, for all voxels and maps, or none"
        )
    return ScaleRange((float(mean), float(mean) + float(deviation)))


@dataclass
class After:
    """The steps after the network.

    Attributes:
        activation: the function of the output before it is resampled.
        order: the order of the spline to the scan's voxels; None: it is not resampled.
        masks: the number from which on a value counts as 1; None: the largest map counts.
        largest: the labels of which only the largest component stays; None: of all labels.
        together: whether these labels form components together.
    """

    activation: BlendedActivation = "identity"
    order: SplineOrder | None = None
    masks: float | None = None
    largest: Sequence[int] | None = ()
    together: bool = False


def steps_after(transforms: Iterable[Component], before: Before) -> After:
    """Return the steps that transforms after the network stand for.

    Raises:
        InvalidInput: a transform, an argument or an order is not known here.
    """
    steps, discrete = After(), False
    for transform in transforms:
        name = plain_name(transform.name)
        match name:
            case "Activations":
                if discrete or (steps.order is not None and steps.order > 0):
                    raise InvalidInput(
                        "its postprocessing has Activations after Invert or AsDiscrete; znni "
                        "applies them before"
                    )
                steps.activation = _activation(transform)
            case "Invert":
                steps.order = _inverted(transform, before, discrete=discrete)
            case "AsDiscrete":
                steps.masks, discrete = _discrete(transform), True
            case "KeepLargestConnectedComponent":
                if not discrete or (before.spacing and steps.order is None):
                    raise InvalidInput(
                        f"its postprocessing has {transform.name} before Invert or AsDiscrete; "
                        f"znni finds components of labels, in the scan's voxels"
                    )
                steps.largest, steps.together = _largest(transform)
            case _ if name in SAVING:
                pass
            case _:
                raise InvalidInput(
                    f"its postprocessing has {transform.name}, which znni does not have; known are "
                    f"{', '.join(KNOWN_AFTER)}"
                )
    if not discrete:
        raise InvalidInput("its postprocessing has no AsDiscrete; znni writes labels or masks")
    if steps.order is None and (before.spacing or before.orientation != "stored"):
        raise InvalidInput(
            "its postprocessing has no Invert, so it saves labels in other voxels than the scan's; "
            "znni writes them in the scan's"
        )
    if steps.order == 0 and steps.masks is None:  # the largest map is the same
        steps.activation = "identity"
    return steps


def _activation(transform: Component) -> BlendedActivation:
    transform.check(*COMMON, "sigmoid", "softmax", other=(None,), dim=(0,))
    sigmoid, softmax = map(_first, transform.values(sigmoid=False, softmax=False))
    if sigmoid and softmax:
        raise InvalidInput("its Activations are sigmoid and softmax; give one of them")
    return "sigmoid" if sigmoid else "softmax" if softmax else "identity"


def _inverted(transform: Component, before: Before, *, discrete: bool) -> SplineOrder:
    """Return the order by which the output is resampled."""
    transform.check(
        *COMMON, "transform", "orig_keys", "orig_meta_keys", "nearest_interp", "to_tensor",
        post_func=(None,),
    )  # fmt: skip
    (nearest,) = map(_first, transform.values(nearest_interp=True))
    order = 0 if nearest else before.order
    if before.spacing and order > 1:
        raise InvalidInput(
            "its Invert resamples the output by splines of order 3; znni does so by order 0 or 1"
        )
    if before.spacing and discrete and order:
        raise InvalidInput(
            "its Invert interpolates labels, which gives numbers between them; set nearest_interp "
            "to true, or put AsDiscrete after it"
        )
    return order


def _discrete(transform: Component) -> float | None:
    """Return the threshold; None if the largest map counts."""
    transform.check(
        *COMMON, "argmax", "threshold", to_onehot=(None, [None]), rounding=(None, [None]), dim=(0,),
        keepdim=(True,), dtype=(Expression("$torch.float"), Expression("$torch.float32")),
    )  # fmt: skip
    argmax, threshold = map(_first, transform.values(argmax=False, threshold=None))
    if bool(argmax) == (threshold is not None) or not (argmax or _is_number(threshold)):
        raise InvalidInput(
            f"its AsDiscrete has argmax {argmax} and threshold {threshold}; one of them is expected"
        )
    return None if argmax else float(threshold)


def _largest(transform: Component) -> tuple[Sequence[int] | None, bool]:
    """Return the labels whose largest component stays, and whether they count together."""
    transform.check(
        *COMMON, "applied_labels", "independent", is_onehot=(None, False), connectivity=(None, 3),
        num_components=(1,),
    )  # fmt: skip
    labels, independent = transform.values(applied_labels=None, independent=True)
    if labels is not None:
        labels = labels if isinstance(labels, list) else [labels]
        if not labels or not all(isinstance(label, int) and label > 0 for label in labels):
            raise InvalidInput(f"its {transform.name} has labels {labels}; integers above 0 count")
    return labels, not independent


def _first(value: Any) -> Any:
    """Return the value for the first of several keys."""
    return value[0] if isinstance(value, list) and value else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
