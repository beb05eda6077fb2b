"""Networks as YAML files, which are checked and turned into a ``Network``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from znni.core.errors import InvalidInput
from znni.core.yaml_file import Count, Entry, Name, YamlFile
from znni.network.geometry import context
from znni.network.layer_entries import (
    FOLDED,
    KINDS,
    WINDOWS,
    AddEntry,
    AffineEntry,
    ConcatEntry,
    ConvEntry,
    ConvTransposeEntry,
    Finite,
    LayerKind,
    MultiplyEntry,
    PoolEntry,
    UpsampleEntry,
    WindowEntry,
    entry_of,
)
from znni.network.layers import Concat
from znni.network.network import INPUT, InputScaling, Network, Node, maps_of

# The name of the join of several outputs.
OUTPUTS = "outputs"


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


FileName = Annotated[str, BeforeValidator(_file_name)]
Sources = Annotated[list[str], BeforeValidator(_sources)]


class _LayerEntry(Entry):
    unneeded: ClassVar[Mapping[str, str]] = {"batchnorm": FOLDED, "batch_norm": FOLDED}
    name: Name | None = None
    sources: Sources | None = Field(default=None, alias="from")
    conv: ConvEntry | None = None
    conv_transpose: ConvTransposeEntry | None = None
    pool: PoolEntry | None = None
    upsample: UpsampleEntry | None = None
    affine: AffineEntry | None = None
    concat: ConcatEntry | None = None
    add: AddEntry | None = None
    multiply: MultiplyEntry | None = None
    instance_norm: WindowEntry | None = None
    group_norm: WindowEntry | None = None
    global_pool: WindowEntry | None = None

    @property
    def kinds(self) -> dict[str, LayerKind]:
        """What the entry says, by kind; a layer has one kind."""
        given = ((kind, getattr(self, kind)) for kind in type(self).model_fields)
        return {kind: entry for kind, entry in given if isinstance(entry, LayerKind)}


class _InputEntry(Entry):
    scale: Finite = 1.0
    offset: Finite = 0.0


class _NetworkFile(Entry):
    name: Name
    in_features: Count = 1
    layers: Annotated[list[_LayerEntry], Field(min_length=1)]
    outputs: Sources | None = None
    weights: FileName | None = None
    input: _InputEntry = _InputEntry()


def load_network(path: str | Path) -> Network:
    """Read a network file.

    Args:
        path: the path of a YAML file. It has ``name``, ``in_features``, ``layers`` and, optionally,
            ``weights`` (a file beside it) and ``input`` (scale and offset).

    Raises:
        InvalidInput: there is no such file, or it is not a network. The message names the line.
    """
    return _network_of(YamlFile(Path(path), "network"))


def network_from_text(text: str, name: str | Path) -> Network:
    """Return the network of a network file's text.

    Args:
        text: the text: YAML, or JSON as ``network_text`` returns it.
        name: the origin of the text, for messages.

    Raises:
        InvalidInput: the text is not a network. The message names the line.
    """
    return _network_of(YamlFile(Path(name), "network", text))


def network_text(network: Network) -> str:
    """Return a network file on one line, in JSON, which is also YAML. It names no weights."""
    features = {"name": network.name, "in_features": network.in_features}
    nodes, outputs = list(network.nodes), [network.output]
    if nodes[-1].name == OUTPUTS:
        last = nodes.pop()
        outputs = list(last.inputs)
    before = [INPUT, *(node.name for node in nodes)]
    layers = []
    for node, default in zip(nodes, before, strict=False):
        sources = {} if node.inputs == (default,) else {"from": list(node.inputs)}
        entry = {KINDS[type(node.layer)]: entry_of(node.layer)}
        layers.append({"name": node.name, **sources, **entry})
    named = {} if outputs == before[-1:] else {"outputs": outputs}
    return json.dumps(features | {"input": asdict(network.scaling), "layers": layers} | named)


def _network_of(file: YamlFile) -> Network:
    entries = file.checked(_NetworkFile)
    nodes = _nodes(file, entries)
    output = nodes[-1].name
    if entries.outputs:
        known = [node.name for node in nodes]
        for name in entries.outputs:
            if name not in known:
                problem = f"there is no layer {name!r}; the layers are {', '.join(known)}"
                raise file.refusal(("outputs",), problem)
        output = entries.outputs[0]
        if len(entries.outputs) > 1:
            output = OUTPUTS
            nodes.append(Node(Concat(OUTPUTS), tuple(entries.outputs)))
    try:
        network = Network(
            name=entries.name,
            in_features=entries.in_features,
            nodes=tuple(nodes),
            output=output,
            scaling=InputScaling(entries.input.scale, entries.input.offset),
            weights=file.path.parent / entries.weights if entries.weights else None,
        )
        if network.is_exact:
            context(network)  # raises an error if its layers do not fit together
    except InvalidInput as error:
        raise file.refusal(("layers",), str(error)) from None
    return network


def _nodes(file: YamlFile, entries: _NetworkFile) -> list[Node]:
    """Return the nodes, with default names (conv1, pool1, conv2, ...)."""
    nodes: list[Node] = []
    maps = {INPUT: entries.in_features}
    count = Counter[str]()
    for index, entry in enumerate(entries.layers):
        where = ("layers", index)
        if len(entry.kinds) != 1:
            kinds = ", ".join(KINDS.values())
            raise file.refusal(where, f"a layer is of one kind; give one of {kinds}")
        ((kind, given),) = entry.kinds.items()
        count[kind] += 1
        name = entry.name or f"{kind}{count[kind]}"
        if isinstance(given, WindowEntry):
            raise file.refusal((*where, kind), f"layer {name} is of kind {kind}, which {WINDOWS}")
        if name in maps:
            problem = f"an earlier layer is also named {name!r}; rename one"
            raise file.refusal((*where, "name"), problem)
        takes = entry.sources or [nodes[-1].name if nodes else INPUT]
        for source in takes:
            if source not in maps:
                problem = f"layer {name} takes {source!r}, which no layer before it is named"
                raise file.refusal((*where, "from"), f"{problem}; name an earlier layer")
        try:
            node = Node(given.layer(name, [maps[source] for source in takes]), tuple(takes))
            maps[name] = maps_of(node, maps)
        except InvalidInput as error:
            raise file.refusal(where, str(error)) from None
        nodes.append(node)
    return nodes
