"""Checkpoints of pytorch-3dunet: a YAML file beside them says how the network is built.

It is the configuration of the training, or the description of a bioimage.io package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.yaml_file import is_count, plain_content
from znni.importing.bioimageio_files import is_package
from znni.importing.bioimageio_model import read_model
from znni.importing.known_networks import KNOWN, built, is_known
from znni.importing.steps import Found, Layered, Settings
from znni.importing.torch_checkpoint import read_checkpoint
from znni.importing.torch_module import read_module
from znni.network.input_scaling import Fixed, InputScaling, ZScore
from znni.network.layers import Normalize
from znni.network.window import Window

LIBRARY = "pytorch3dunet"
SUFFIX = ".pytorch"
YAML_SUFFIXES = (".yaml", ".yml")
IN_PYTHON = (
    "build the model in Python, load this file into it, and call znni.import_network(model.eval(), "
    "'net.yaml')"
)


def read_3dunet(path: Path) -> Found:
    """Return the network of a checkpoint, with the window and normalization of its training.

    Raises:
        InvalidInput: there is no configuration beside the checkpoint, or several, or the network
            cannot be built or represented.
    """
    config = _configuration(path)
    if config is None:
        return _of_package(path)
    model = dict(config["model"])
    name = str(model.pop("name"))
    if not is_known(LIBRARY, name):
        raise InvalidInput(
            f"is of the class {name}, and those read here are {', '.join(KNOWN[LIBRARY].classes)}; "
            f"{IN_PYTHON}"
        )
    try:
        module = built(LIBRARY, name, model, read_checkpoint(path))
    except InvalidInput as error:
        raise InvalidInput(f"its parameters {error}") from error.__cause__
    contents = read_module(module)
    scaling, notes = _scaling(config)
    settings = Settings(scaling, _window(config) if _needs_window(contents) else None)
    return replace(contents, settings=settings, notes=(*contents.notes, *notes))


def _of_package(path: Path) -> Found:
    """Return the network of the bioimage.io package that a checkpoint lies in."""
    if is_package(path.parent):
        return read_model(path.parent, None)
    raise InvalidInput(
        f"has tensors only, and neither config.yaml of its training nor rdf.yaml of bioimage.io "
        f"lies beside it, which say how its layers are connected; {IN_PYTHON}, or put such a file "
        f"there, or give {option('like', 'NET.yaml')} with all layers"
    )


def _configuration(path: Path) -> Mapping[str, Any] | None:
    """Return the configuration of a training beside its checkpoint; None if there is none."""
    configs: dict[str, Mapping[str, Any]] = {}
    for file in sorted(path.parent.iterdir()):
        if file.suffix in YAML_SUFFIXES:
            content = _content(file)
            if isinstance(content.get("model"), Mapping) and "name" in content["model"]:
                configs[file.name] = content
    models = [content["model"] for content in configs.values()]
    if not models:
        return None
    if any(model != models[0] for model in models):
        raise InvalidInput(
            f"may be of {', '.join(configs)}, which lie beside it and have different models; leave "
            f"one of them there"
        )
    # A configuration of tests has the same model, and not the input of the training.
    return max(configs.values(), key=lambda content: _at(content, "loaders", "train") is not None)


def _content(file: Path) -> Mapping[str, Any]:
    """Return what a YAML file holds; nothing if it is no YAML."""
    try:
        content = plain_content(file, file.read_text(encoding="utf-8"))
    except (InvalidInput, OSError, UnicodeDecodeError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _needs_window(found: Found) -> bool:
    operations = (step.operation for step in found.graph.steps)
    return any(
        isinstance(each, Layered) and isinstance(each.layer, Normalize) for each in operations
    )


def _window(config: Mapping[str, Any]) -> Window | None:
    """Return the patches of the training as windows; None if the file does not say them."""
    extents = _at(config, "loaders", "train", "slice_builder", "patch_shape")
    if isinstance(extents, list) and len(extents) == 3 and all(map(is_count, extents)):
        return Window(Vec3(*extents))
    return None


def _scaling(config: Mapping[str, Any]) -> tuple[InputScaling, tuple[str, ...]]:
    """Return how the training scaled its input, and notes on what znni does not do by itself."""
    steps = _at(config, "loaders", "train", "transformer", "raw")
    names = [str(_at(step, "name")) for step in steps] if isinstance(steps, list) else []
    if "Standardize" in names:
        given = steps[names.index("Standardize")]
        mean, std = given.get("mean"), given.get("std")
        if mean is None:
            channelwise = bool(given.get("channelwise"))
            return InputScaling(normalize=(ZScore(),), together=not channelwise), ()
        return InputScaling(normalize=(Fixed(float(mean), float(std)),)), ()
    if names:
        return InputScaling(), (
            f"its training prepared the input by {', '.join(names)}; add what scales values as "
            f"input: to the network file",
        )
    return InputScaling(), ()


def _at(content: Any, *keys: str) -> Any:
    """Return what nested mappings have under some keys; None if they have not."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content
