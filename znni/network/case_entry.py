"""The entry of a network file for whole cases, and the steps that it stands for."""

from __future__ import annotations

from dataclasses import Field as DataField
from dataclasses import asdict, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from znni.core.errors import InvalidInput
from znni.core.yaml_file import Entry
from znni.network.case_rules import (
    Align,
    Beyond,
    CaseRules,
    Orientation,
    PreviousStage,
    ResampleRule,
    ScaleRange,
    Slices,
    SplineOrder,
    Standardize,
    Stretch,
    ValueStep,
    VoxelsFrom,
)
from znni.network.layer_entries import Finite, finite

# The changes of values by the names of their entries.
VALUE_STEPS: dict[str, type[ValueStep]] = {
    "scale_range": ScaleRange,
    "stretch": Stretch,
    "standardize": Standardize,
}

# The keys of their fields, if these have other names.
KEYS = {"source": "from", "target": "to"}


def _values(value: object) -> tuple[ValueStep, ...]:
    """Return the changes of values in a list of entries."""
    return tuple(map(_value_step, value if isinstance(value, list) else [value]))


def _value_step(value: Any) -> ValueStep:
    """Return the change of values that an entry describes, such as ``stretch: {to: [0, 1]}``."""
    if not isinstance(value, dict) or len(value) != 1 or not set(value) <= set(VALUE_STEPS):
        raise ValueError(f"give each step as one of {', '.join(VALUE_STEPS)}")
    ((name, given),) = value.items()
    kind, entry = VALUE_STEPS[name], dict(given or {})
    known = {KEYS.get(field.name, field.name): field for field in fields(kind)}
    if foreign := [key for key in entry if key not in known]:
        raise ValueError(f"{name} has no {foreign[0]!r}; its keys are {', '.join(known)}")
    try:
        return kind(**{known[key].name: _plain(known[key], it) for key, it in entry.items()})
    except (InvalidInput, TypeError, ValueError) as error:
        raise ValueError(f"{name} is {dict(entry)}: {error}") from None


def _plain(field: DataField[Any], value: Any) -> Any:
    """Return a switch, or two numbers."""
    if field.default is True or field.default is False:
        if not isinstance(value, bool):
            raise ValueError(f"{field.name} is true or false")
        return value
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{KEYS[field.name]} is a list of two numbers")
    return tuple(map(finite, value))


def _labels(value: object) -> object:
    """Return groups of labels, from a list of labels or of lists."""
    given = value if isinstance(value, list) else [value]
    return [each if isinstance(each, list) else [each] for each in given]


class _ResampleEntry(Entry):
    order: SplineOrder = ResampleRule.order
    across: SplineOrder = ResampleRule.across
    slices: Slices = ResampleRule.slices

    @property
    def rule(self) -> ResampleRule:
        """The rule that the entry describes."""
        return ResampleRule(**dict(self))


class _PreviousEntry(Entry):
    name: str
    labels: Annotated[tuple[int, ...], Field(min_length=1)]
    resampled: _ResampleEntry = _ResampleEntry(**asdict(PreviousStage.resampled))

    @property
    def stage(self) -> PreviousStage:
        """The stage that the entry describes."""
        return PreviousStage(self.name, self.labels, self.resampled.rule)


class CaseEntry(Entry):
    """The entry of a network file that describes whole cases."""

    channels: Annotated[tuple[str, ...], Field(min_length=1)]
    file_ending: str = CaseRules.file_ending
    orientation: Orientation = CaseRules.orientation
    voxels: VoxelsFrom = CaseRules.voxels
    image: _ResampleEntry = _ResampleEntry(**asdict(CaseRules.image))
    output: _ResampleEntry = _ResampleEntry(**asdict(CaseRules.output))
    previous_stage: _PreviousEntry | None = None
    align: Align = CaseRules.align
    values: Annotated[tuple[Any, ...], BeforeValidator(_values)] = CaseRules.values
    masks: Finite | None = CaseRules.masks
    largest: Annotated[
        tuple[
            Annotated[tuple[Annotated[int, Field(ge=1, lt=2**16)], ...], Field(min_length=1)], ...
        ],
        BeforeValidator(_labels),
    ] = CaseRules.largest
    beyond: Beyond = CaseRules.beyond

    @property
    def rules(self) -> CaseRules:
        """The steps that the entry describes."""
        nested = {
            "image": self.image.rule,
            "output": self.output.rule,
            "previous_stage": self.previous_stage and self.previous_stage.stage,
        }
        return CaseRules(**dict(self) | nested)


def case_entry(rules: CaseRules) -> dict[str, Any]:
    """Return the entry of a network file that stands for steps of whole cases.

    Steps that only some networks have are left out if a case does not have them.
    """
    entry = asdict(rules)
    names = {kind: name for name, kind in VALUE_STEPS.items()}
    entry["values"] = [
        {names[type(step)]: {KEYS.get(key, key): each for key, each in asdict(step).items()}}
        for step in rules.values
    ]
    for name in ("previous_stage", "voxels", "align", "values", "masks", "largest", "beyond"):
        if getattr(rules, name) == getattr(CaseRules, name):
            del entry[name]
    return entry
