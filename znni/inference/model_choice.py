"""Choice between a file's own library and znni, for networks that both can compute.

A network file may name a model of ONNX or PyTorch. If all of its layers are known, it is imported
once, into the user's cache. Then the faster of both plans decides. The decision is kept there too,
so that a run that goes on computes as it began.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from znni.core.errors import InvalidInput, MissingLibrary, RunFailed
from znni.core.logged import log_of_waits, telling_if_long
from znni.core.memory_errors import DoesNotFit
from znni.core.plan_options import Choices
from znni.core.shapes import Vec3
from znni.core.text import duration
from znni.core.user_cache import (
    MOST_BYTES_OF_IMPORTS,
    delete_unused_once,
    load,
    user_cache,
    warn_not_stored,
)
from znni.core.value_cache import ValueCache
from znni.importing.checks import NotExpressed
from znni.inference import planning
from znni.inference.import_process import ImportEnded, import_apart
from znni.inference.model_compilation import compile_if_it_pays
from znni.inference.request import OpenRequest, Request, open_request
from znni.machine.detect import detect_for
from znni.network.geometry import with_window
from znni.network.models import Model
from znni.network.network import Network
from znni.network.network_file import load_network

log = logging.getLogger("znni")

IMPORTS = 1  # the version of what is imported; raise it when import knows more layers

# The reasons for choices, and those why a model is not imported. All of them are text.
REASONS = ValueCache("models", IMPORTS, str)


@dataclass(frozen=True)
class EngineChoice:
    """The choice of the engine that computes a network.

    Attributes:
        network: the network in the form that the engine computes.
        why: the reason in a sentence; empty if there was no choice to make.
    """

    network: Network
    why: str = ""


def chosen(network: Network, volume: Vec3, choices: Choices) -> EngineChoice:
    """Return the engine that computes a network over a volume.

    Args:
        volume: the extents of the volume.
        choices: limits and choices for the plan.

    Raises:
        InvalidInput: a library is missing, or cannot compute such windows.
        DoesNotFit: neither plan stays within the memory allowed.
    """
    shared = shared_form(network)
    if shared.network is network or shared.network.window is None:
        return shared
    (model,), own = network.models, shared.network
    assert network.window is not None
    about = (*_cache_key(model), _processors(choices), network.window.size, choices.accuracy)
    if known := REASONS.load(about):
        return EngineChoice(own if known.startswith("znni") else network, known)
    theirs, ours = (_seconds(each, volume, choices) for each in (network, own))
    if isinstance(theirs, DoesNotFit) and isinstance(ours, DoesNotFit):
        raise ours
    if isinstance(theirs, DoesNotFit) or isinstance(ours, DoesNotFit):
        taken, able = (own, "znni") if isinstance(theirs, DoesNotFit) else (network, model.runtime)
        why = f"{able} computes {Path(model.file).name}: the other does not fit into memory"
        return EngineChoice(taken, why)
    taken, able = (own, "znni") if ours < theirs else (network, model.runtime)
    why = (
        f"{able} computes {Path(model.file).name}: predicted {duration(ours)} by znni and "
        f"{duration(theirs)} by {model.runtime}"
    )
    REASONS.store(about, why)
    return EngineChoice(taken, why)


def shared_form(network: Network) -> EngineChoice:
    """Return a network in the form in which several machines compute it.

    It depends on the network's file alone, so that all of them compute the same. znni computes what
    it can express. If nobody asked for windows and no layer needs them, there are none.
    """
    if len(network.nodes) != 1 or not network.models or network.window is None:
        return EngineChoice(network)
    (model,) = network.models
    own = _expressed(model, network)
    name = Path(model.file).name
    if isinstance(own, str):
        return EngineChoice(network, f"{model.runtime} computes {name}: {own}")
    if own.window is None:
        return EngineChoice(
            own, f"znni computes {name} over the whole volume: no layer needs windows"
        )
    return EngineChoice(own, f"znni computes {name}, because it knows all of its layers")


def open_faster(request: Request) -> OpenRequest:
    """Open a request, as ``open_request``, for its network in the faster engine's form.

    A plan that the caller gives decides on the engine. If other processes compute other parts, the
    choice depends on the network's file alone.
    """
    network = request.loaded
    asked = open_request(replace(request, network=network))
    if not network.models:
        return asked
    if request.plan is not None:
        taken = EngineChoice(network) if request.plan.network.models else shared_form(network)
    elif request.part is not None:
        taken = shared_form(network)
    else:
        taken = chosen(network, asked.volume.size, asked.choices)
    if taken.why:
        log.info("%s", taken.why)
    if taken.network.models and request.plan is None:
        compile_if_it_pays(taken.network, asked.volume.size, asked.choices)
    if taken.network is network:
        return asked
    return open_request(replace(request, network=taken.network))


def _processors(choices: Choices) -> tuple[object, ...]:
    """Return the processors among which plans choose."""
    here = detect_for(choices.device, choices.ram, choices.threads, choices.gpu_memory)
    return here.host.threads, choices.device, *(gpu.name for gpu in here.gpus[:1])


def _seconds(network: Network, volume: Vec3, choices: Choices) -> float | DoesNotFit:
    """Return the predicted seconds of a network over a volume, or why there is no plan."""
    try:
        search = planning.search(network, volume, **vars(choices))
        with telling_if_long(planning.SEARCH):
            return search.fastest(1)[0].seconds
    except DoesNotFit as error:
        return error


def _expressed(model: Model, network: Network) -> Network | str:
    """Return a model as layers, with windows and scaling as a network has them; or why not."""
    imported = _imported(model)
    if known := REASONS.load(_cache_key(model)):
        return known
    try:
        if load(imported) is None:
            log_of_waits.info("importing %s, once", model.given)
            imported.parent.mkdir(parents=True, exist_ok=True)
            import_apart(Path(model.file), imported)
            delete_unused_once(_imports(), MOST_BYTES_OF_IMPORTS)
        found = load_network(imported)
        own = replace(
            found,
            name=network.name,
            scaling=network.scaling,
            labels=network.labels,
            spacing=network.spacing,
        )
        assert network.window is not None
        if network.window.by_default and not own.window_layer:
            return own
        return with_window(own, network.window)
    except (InvalidInput, RunFailed, OSError) as error:
        failed = error if isinstance(error, OSError) else error.__cause__
        if isinstance(failed, OSError):  # verifying and going on need what is imported
            warn_not_stored(imported, failed)
            return f"what znni imports cannot be kept in {imported.parent}: {failed.strerror}"
        said = error.why if isinstance(error, NotExpressed) else str(error)
        reason = said.removeprefix(f"{model.file}: ").partition(";")[0]
        why = f"znni does not, because {reason}"
        passing = isinstance(error, MissingLibrary | ImportEnded)
        if load(imported) is None and not passing:
            REASONS.store(_cache_key(model), why)
        return why


def _cache_key(model: Model) -> tuple[str, str]:
    """Return a model's hash and its library."""
    return model.sha256, model.runtime


def _imported(model: Model) -> Path:
    """Return the file of the network into which a model is imported."""
    return _imports() / f"{model.sha256[:16]}-{model.runtime}-{IMPORTS}" / "network.yaml"


def _imports() -> Path:
    """Return the folder of all imported networks."""
    return user_cache() / "imports"
