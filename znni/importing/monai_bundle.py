"""Bundles of MONAI, as networks with the steps of whole cases. No code of a bundle runs.

The configuration is read as plain values, and MONAI builds the network from the classes that are
named here only. The parameters are read as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.core.voxel_size import VoxelSize
from znni.importing.axis_order import in_order, order_of, reordered
from znni.importing.known_networks import KNOWN, built, is_known
from znni.importing.monai_config import (
    Component,
    Config,
    check_plain,
    component_of,
    components_of,
    read_config,
)
from znni.importing.monai_transforms import After, steps_after, steps_before
from znni.importing.steps import Found, Graph, Layered, Settings
from znni.importing.torch_checkpoint import read_checkpoint
from znni.importing.torch_module import read_module
from znni.network.case_rules import Beyond, CaseRules, ResampleRule
from znni.network.node import INPUT, Node, maps_of
from znni.network.window import Window
from znni.network.window_weights import SIGMA

CONFIGS = tuple(f"configs/inference{ending}" for ending in (".json", ".yaml", ".yml"))
METADATA = "configs/metadata.json"
MODEL, SCRIPTED = "models/model.pt", "models/model.ts"
ORDER = order_of("xyz")  # MONAI reads NIfTI so


def is_bundle(path: Path) -> bool:
    """Return whether a path is the folder of a MONAI bundle."""
    return any((path / name).is_file() for name in CONFIGS)


def read_bundle(path: Path) -> Found:
    """Return the network of a bundle, with its windows, labels and the steps of whole cases.

    Raises:
        InvalidInput: a file is missing or damaged. Or the bundle has a network, a transform or an
            expression that is not known here.
    """
    config = read_config(next(path / name for name in CONFIGS if (path / name).is_file()))
    before = steps_before(components_of(config.part("preprocessing"), "preprocessing"))
    after = steps_after(components_of(config.part("postprocessing"), "postprocessing"), before)
    window, beyond = _window(config)
    contents = read_module(_module(config, path))
    graph, maps = contents.graph, _output_maps(contents.graph)
    inputs, outputs = _channels(path)
    channels = _names(inputs, graph.maps, "channel")
    names = _names(outputs, maps, "map")
    labels = tuple((name, number) for number, name in enumerate(names))
    case = CaseRules(
        channels,
        orientation=before.orientation,
        image=ResampleRule(before.order, slices="never"),
        output=ResampleRule(after.order or 0, slices="never"),
        align=before.align,
        values=tuple(before.values),
        masks=after.masks,
        largest=_groups(after, maps),
        beyond=beyond,
    )
    spacing = VoxelSize(before.spacing[::-1], "millimeter") if before.spacing else None
    window = replace(window, activation=after.activation)
    settings = Settings(
        window=window, labels=labels if after.masks is None else (), spacing=spacing, case=case
    )
    notes = (
        *contents.notes,
        "its axes are xyz in MONAI, and zyx here",
        f"it is for whole scans: run it by znni infer with {option('case', True)}",
    )
    return reordered(replace(contents, notes=notes, settings=settings), ORDER)


def _module(config: Config, path: Path) -> Any:
    """Return the network, built by MONAI from its arguments and tensors."""
    name = "network_def" if "network_def" in config.content else "network"
    network = component_of(config.part(name), name)
    if network is None or not is_known("monai", network.name):
        known = ", ".join(KNOWN["monai"].classes)
        raise InvalidInput(
            f"its network is {network.name if network else 'switched off'}, which znni does not "
            f"build; known are {known}"
        )
    check_plain(dict(network.arguments), f"{name} of {config.name}")
    if network.arguments.get("spatial_dims", 3) != 3:
        raise InvalidInput("its network is of two dimensions, and znni computes volumes")
    file = path / MODEL
    if not file.is_file():
        scripted = (path / SCRIPTED).is_file()
        raise InvalidInput(
            f"has no {MODEL}, the state dict"
            + f"; {SCRIPTED} is TorchScript, whose code znni does not run" * scripted
        )
    try:
        return built("monai", network.name, network.arguments, read_checkpoint(file))
    except InvalidInput as error:
        raise InvalidInput(f"its weights {MODEL} {error}") from error.__cause__


def _window(config: Config) -> tuple[Window, Beyond]:
    """Return the windows, and what they see beyond a smaller scan."""
    inferer = component_of(config.part("inferer"), "inferer")
    if inferer is None or inferer.name not in ("SlidingWindowInferer", "SlidingWindowInfererAdapt"):
        raise InvalidInput(
            f"its inferer is {inferer.name if inferer else 'switched off'}; znni knows "
            f"SlidingWindowInferer"
        )
    inferer.check(
        "roi_size", "sw_batch_size", "overlap", "mode", "padding_mode", "sw_device", "device",
        "progress", "cache_roi_weight_map", "cpu_thresh", "buffer_steps", "buffer_dim",
        sigma_scale=(SIGMA, [SIGMA] * 3), cval=(0, 0.0), roi_weight_map=(None,),
        with_coord=(False,),
    )  # fmt: skip
    roi, overlap, mode, padding = inferer.values(
        roi_size=None, overlap=0.25, mode="constant", padding_mode="constant"
    )
    size = _three(roi, "roi_size", inferer)
    shares = overlap if isinstance(overlap, list) else [overlap]
    if len({*shares}) != 1:
        raise InvalidInput(f"its windows overlap by {overlap}; znni knows one share for all axes")
    if not all(isinstance(extent, int) and extent > 0 for extent in size):
        raise InvalidInput(f"its {inferer.name} has roi_size {roi}; extents above 0 are expected")
    beyond: Beyond = "zeros" if padding == "constant" else "none"
    return Window(in_order(size, ORDER), shares[0], mode), beyond


def _three(value: Any, name: str, component: Component) -> list[Any]:
    """Return a value for each axis, from three or one for all."""
    given = value if isinstance(value, list) else [value] * 3
    if len(given) != 3:
        raise InvalidInput(f"its {component.name} has {name} {value}; three numbers are expected")
    return given


def _output_maps(graph: Graph) -> int:
    """Return the number of output maps of a network."""
    maps = {INPUT: graph.maps}
    for step in graph.steps:
        if isinstance(step.operation, Layered):
            maps[step.value] = maps_of(Node(step.operation.layer, step.reads), maps)
        else:
            maps[step.value] = maps[step.reads[0]]
    return sum(maps[output] for output in graph.outputs)


def _channels(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the names of input and output maps by their numbers, as far as the bundle has them."""
    if not (path / METADATA).is_file():
        return {}, {}
    formats = read_config(path / METADATA).content.get("network_data_format")
    names: list[Mapping[str, Any]] = []
    for side in ("inputs", "outputs"):
        entries = formats.get(side) if isinstance(formats, dict) else None
        first = next(iter(entries.values()), None) if isinstance(entries, dict) else None
        given = first.get("channel_def") if isinstance(first, dict) else None
        names.append(given if isinstance(given, dict) else {})
    return names[0], names[1]


def _names(given: Mapping[str, Any], count: int, kind: str) -> tuple[str, ...]:
    """Return a name for each map. Names that are missing or occur twice get the map's number."""
    names: list[str] = []
    for number in range(count):
        name = str(given.get(str(number), f"{kind} {number}"))
        names.append(name if name not in names else f"{name} {number}")
    return tuple(names)


def _groups(after: After, maps: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups of labels of which the largest component stays."""
    labels: Sequence[int] = range(1, maps) if after.largest is None else after.largest
    if after.masks is not None and labels:
        raise InvalidInput(
            f"its postprocessing keeps the largest component of {counted(maps, 'mask')}, and znni "
            f"finds those of labels"
        )
    return (tuple(labels),) if after.together and labels else tuple((it,) for it in labels)
