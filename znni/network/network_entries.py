"""The entries of network files, which are checked and turned into a ``Network``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from znni.core.errors import InvalidInput
from znni.core.nearest import nearest
from znni.core.option_types import Blend, BlendedActivation, WindowRules
from znni.core.resampling import Resampling
from znni.core.shapes import ONE, Vec3
from znni.core.text import counted
from znni.core.voxel_size import VoxelSize, trained_size
from znni.core.yaml_file import Count, Entry, Name, YamlFile
from znni.network.case_entry import CaseEntry
from znni.network.case_rules import CaseRules
from znni.network.geometry import context
from znni.network.geometry import with_window as windowed
from znni.network.input_entry import InputEntry
from znni.network.layer_entries import (
    FOLDED,
    AddEntry,
    AffineEntry,
    ConcatEntry,
    ConvEntry,
    ConvTransposeEntry,
    Extents,
    Finite,
    GlobalPoolEntry,
    GroupNormEntry,
    InstanceNormEntry,
    LayerKind,
    LayerNormEntry,
    MaximumEntry,
    ModelEntry,
    MultiplyEntry,
    PadEntry,
    PoolEntry,
    ResponseNormEntry,
    UpsampleEntry,
)
from znni.network.layers import Concat, Layer, Multiply
from znni.network.model_files import model_layer
from znni.network.network import Network
from znni.network.network_as_text import INPUT_NAME, OUTPUTS
from znni.network.node import INPUT, Node, maps_of, stride_of
from znni.network.strides_to_dilations import slid
from znni.network.window import Window


def _file_name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("give the name of a file")
    return str(value)


def _sources(value: object) -> list[str]:
    """Return the names of the layers that a layer takes, from one name or a list."""
    given = value if isinstance(value, list) else [value]
    if not given or not all(isinstance(name, str) for name in given):
        raise ValueError("give the name of an earlier layer, or a list of names")
    return [str(name) for name in given]


def _axes(value: object) -> object:
    """Return axes as one text, from ``zyx`` or ``[z, y, x]``."""
    return "".join(map(str, value)) if isinstance(value, list) else value


def _is_label(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**16


def check_labels(value: object) -> object:
    """Check the label of each map: integers that differ, from 0 on."""
    known = list(value.values()) if isinstance(value, dict) else []
    if not known or not all(_is_label(label) for label in known):
        raise ValueError(
            "give each map's name and label, such as {background: 0, cell: 1}; labels go from 0 to "
            "65535"
        )
    if len({*known}) < len(known):
        raise ValueError("two maps have the same label; give each its own")
    return {str(name): label for name, label in value.items()}  # type: ignore[attr-defined]


def _spacing(value: object) -> object:
    """Read the extents of voxels: a text, or three of numbers and ``any``."""
    if value is None or isinstance(value, VoxelSize):
        return value
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        return trained_size(text, "spacing: {}".format)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


FileName = Annotated[str, BeforeValidator(_file_name)]
Sources = Annotated[list[str], BeforeValidator(_sources)]


class _LayerEntry(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {"batchnorm": FOLDED, "batch_norm": FOLDED}
    name: Name | None = None
    sources: Sources | None = Field(default=None, alias="from")
    conv: ConvEntry | None = None
    conv_transpose: ConvTransposeEntry | None = None
    pool: PoolEntry | None = None
    global_pool: GlobalPoolEntry | None = None
    upsample: UpsampleEntry | None = None
    pad: PadEntry | None = None
    affine: AffineEntry | None = None
    concat: ConcatEntry | None = None
    add: AddEntry | None = None
    multiply: MultiplyEntry | None = None
    maximum: MaximumEntry | None = None
    model: ModelEntry | None = None
    instance_norm: InstanceNormEntry | None = None
    group_norm: GroupNormEntry | None = None
    layer_norm: LayerNormEntry | None = None
    response_norm: ResponseNormEntry | None = None

    @property
    def kinds(self) -> dict[str, LayerKind]:
        """The parts of the entry, by kind; a layer has one kind."""
        given = ((kind, getattr(self, kind)) for kind in type(self).model_fields)
        return {kind: entry for kind, entry in given if isinstance(entry, LayerKind)}


class _ResampledEntry(Entry):
    source: Annotated[Extents, Field(alias="from")]
    target: Annotated[Extents, Field(alias="to")]
    order: list[Literal[0, 1]] = Field(default=[1, 1, 1], min_length=3, max_length=3)
    steps: list[Annotated[float, Field(gt=0)]] | None = Field(
        default=None, min_length=3, max_length=3
    )
    starts: list[Finite] = Field(default=[0.0, 0.0, 0.0], min_length=3, max_length=3)

    @property
    def resampling(self) -> Resampling:
        """The resampling that the entry describes."""
        z, y, x = self.order
        steps = (self.steps[0], self.steps[1], self.steps[2]) if self.steps else None
        starts = self.starts[0], self.starts[1], self.starts[2]
        source, target = Vec3(*self.source), Vec3(*self.target)
        return Resampling(source, target, (z, y, x), steps=steps, starts=starts)


class _WindowEntry(Entry):
    size: Extents
    overlap: Finite = 0.5
    blend: Blend = "gaussian"
    mirror: Annotated[str, BeforeValidator(_axes)] = ""
    like: WindowRules = "monai"
    resampled: _ResampledEntry | None = None
    activation: BlendedActivation = "identity"


class _NetworkFile(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {
        "host": "this is a machine file, not a network; give it as the machine to plan for"
    }
    name: Name
    in_features: Count = 1
    layers: Annotated[list[_LayerEntry], Field(min_length=1)] | None = None
    model: FileName | None = None
    outputs: Sources | None = None
    labels: Annotated[dict[str, int], BeforeValidator(check_labels)] = Field(default_factory=dict)
    regions: bool = False
    case: CaseEntry | None = None
    weights: FileName | None = None
    input: InputEntry = InputEntry()
    window: _WindowEntry | None = None
    about: str = ""
    expects: str = ""
    spacing: Annotated[VoxelSize | None, BeforeValidator(_spacing)] = None


def network_of(file: YamlFile) -> Network:
    """Return the network of a network file.

    Raises:
        InvalidInput: the file is not a network. The message names the line.
    """
    entries = file.checked(_NetworkFile)
    if (entries.layers is None) == (entries.model is None):
        raise file.refusal((), "a network has layers: or model:; give one of them")
    asked = entries.window is not None
    if entries.model:
        _use_model(file, entries, entries.model)
    nodes, strides = _nodes(file, entries)
    output = nodes[-1].name
    if entries.outputs:
        for name in entries.outputs:
            if name not in strides:
                known = ", ".join(node.name for node in nodes)
                problem = f"there is no layer {name!r}; the layers are {known}"
                raise file.refusal(("outputs",), problem)
        output = entries.outputs[0]
        if len(entries.outputs) > 1:
            output = OUTPUTS
            nodes.append(Node(Concat(OUTPUTS), tuple(entries.outputs)))
            with file.errors_at("outputs"):
                stride_of(nodes[-1], strides)
    with file.errors_at("input"):
        scaling = entries.input.scaling
    with file.errors_at("case"):
        rules = entries.case.rules if entries.case else None
        _check_previous_stage(entries, rules)
    with file.errors_at("layers"):
        network = Network(
            name=entries.name,
            in_features=entries.in_features,
            nodes=tuple(nodes) if entries.window else slid(nodes, output).nodes,
            output=output,
            scaling=scaling,
            weights=file.path.parent / entries.weights if entries.weights else None,
            labels=tuple(entries.labels.items()),
            about=entries.about,
            expects=entries.expects,
            spacing=entries.spacing,
            has_regions=entries.regions,
            case=rules,
        )
        if network.is_tiled:
            context(network)  # raises an error if its layers do not fit together
    if window := entries.window:
        resampled = window.resampled.resampling if window.resampled else None
        given = dict(window) | {"resampled": resampled}
        with file.errors_at("window"):
            network = windowed(network, Window(**given, by_default=not asked))
    if network.labels and len(network.labels) != network.out_features:
        problem = (
            f"there are {len(network.labels)} labels, and "
            f"{counted(network.out_features, 'output map')}; give one label for each"
        )
        raise file.refusal(("labels",), problem)
    return network


def _check_previous_stage(entries: _NetworkFile, rules: CaseRules | None) -> None:
    """Check that there is an input map for each label of the previous stage of a cascade."""
    if rules is None or (stage := rules.previous_stage) is None:
        return
    needed = len(rules.channels) + len(stage.labels)
    if entries.in_features != needed:
        raise InvalidInput(
            f"{counted(len(rules.channels), 'channel')} and {counted(len(stage.labels), 'label')} "
            f"of {stage.name} make {counted(needed, 'map')}, and in_features is "
            f"{entries.in_features}; give one of them for each map"
        )
    if len(entries.input.scaling.normalize) not in (0, needed):
        raise InvalidInput(
            f"maps of labels are not normalized as an image is; give a normalization for each of "
            f"the {needed} maps, and {{mean: 0, std: 1}} for those of labels"
        )


def _use_model(file: YamlFile, entries: _NetworkFile, model: str) -> None:
    """Set the layers to one that is a model, with its input maps, and its windows if it has one."""
    path = file.path.parent / model
    try:
        layer = model_layer("model", path)
    except InvalidInput as error:
        if path == file.path:  # the user gave the model itself, and the error names it
            raise
        raise file.refusal(("model",), str(error)) from None
    entries.in_features = layer.in_features
    entries.layers = [_LayerEntry(name=layer.name, model=ModelEntry(file=model))]
    if layer.fixed and not entries.window:
        entries.window = _WindowEntry(size=layer.fixed)


def _nodes(file: YamlFile, entries: _NetworkFile) -> tuple[list[Node], dict[str, Vec3]]:
    """Return the nodes of the layers, and the strides of their values."""
    nodes: list[Node] = []
    layers = entries.layers or []
    maps, strides = {INPUT: entries.in_features}, {INPUT: ONE}
    pooled: set[str] = set()
    names = _names(file, layers)
    for index, (entry, name) in enumerate(zip(layers, names, strict=True)):
        where = ("layers", index)
        (given,) = entry.kinds.values()
        if name in maps:
            problem = f"an earlier layer is also named {name!r}; rename one"
            raise file.refusal((*where, "name"), problem)
        takes = []
        for source in entry.sources or [nodes[-1].name if nodes else INPUT]:
            if source not in maps and source != INPUT_NAME:
                raise file.refusal((*where, "from"), _unknown(name, source, names, index))
            takes.append(source if source in maps else INPUT)
        with file.errors_at(*where):
            layer = _layer(file, given, name, [maps[source] for source in takes])
            if isinstance(layer, Multiply) and [each in pooled for each in takes] == [False, True]:
                layer = replace(layer, spreads=True)
            node = Node(layer, tuple(takes))
            maps[name] = maps_of(node, maps)
            strides[name] = stride_of(node, strides)
        nodes.append(node)
        if node.is_pooled(pooled):
            pooled.add(name)
    return nodes, strides


def _layer(file: YamlFile, given: LayerKind, name: str, maps: Sequence[int]) -> Layer:
    if isinstance(given, ModelEntry):
        return given.layer_in(file.path.parent, name)
    return given.layer(name, maps)


def _names(file: YamlFile, entries: Sequence[_LayerEntry]) -> list[str]:
    """Return the names of the layers; the default names are conv1, pool1, conv2, ..."""
    names = []
    count = Counter[str]()
    for index, entry in enumerate(entries):
        if len(entry.kinds) != 1:
            fields = _LayerEntry.model_fields
            kinds = ", ".join(kind for kind in fields if kind not in ("name", "sources"))
            raise file.refusal(("layers", index), f"a layer is of one kind; give one of {kinds}")
        (kind,) = entry.kinds
        count[kind] += 1
        names.append(entry.name or f"{kind}{count[kind]}")
    return names


def _unknown(name: str, source: str, names: Sequence[str], index: int) -> str:
    """Return what is wrong with a source that no earlier layer is named."""
    if source == name:
        return f"layer {name} takes its own output; name an earlier layer"
    if source in names[index:]:
        return (
            f"layer {name} takes {source!r}, which comes after it; put {source} before it, because "
            f"a network has no cycles"
        )
    close = nearest(source, names[:index])
    hint = f"did you mean {close!r}? " if close else ""
    known = ", ".join((INPUT_NAME, *names[:index]))
    return f"layer {name} takes {source!r}, but no layer has that name; {hint}Choose from {known}"
