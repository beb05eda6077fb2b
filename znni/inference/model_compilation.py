"""Compilation of PyTorch's models for a GPU, before a long run."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from shutil import which

from znni.core.errors import InvalidInput, ZnniError
from znni.core.logged import telling_if_long
from znni.core.plan_options import Choices
from znni.core.processors import may_use_gpu
from znni.core.shapes import Vec3
from znni.core.text import duration
from znni.core.user_cache import warn_not_stored
from znni.core.value_cache import ValueCache
from znni.inference import planning
from znni.network.model_files import UNCOMPILED, compile_model, compiled_folder, is_compiled
from znni.network.model_on_gpu import CANNOT_COMPILE
from znni.network.network import Network
from znni.primitives.other_library.on_gpu import PytorchOnGpu

log = logging.getLogger("znni")

# Compilation pays off if a run takes longer, because it takes a minute or more.
PAYS_SECONDS = 240.0

# The reasons why models cannot be compiled. All of them are text.
REASONS = ValueCache("models", 3, str)

# The compilers that PyTorch looks for, beside Triton and those that CC and CXX name.
COMPILERS = ("cc", "gcc", "clang", "g++")

# Errors that another run may not have.
PASSING = ("out of memory", "No space left")


def compile_if_it_pays(network: Network, volume: Vec3, choices: Choices) -> None:
    """Compile a network's model for the GPU, once, if its run over a volume takes long.

    Args:
        network: a network with a model of another library.
        volume: the extents of the volume.
        choices: limits and choices for the plan.
    """
    if not may_use_gpu(choices.device):
        return
    search = planning.search(network, volume, **vars(choices))
    try:
        plan = search.fastest(1)[0]
    except ZnniError:  # the run says so
        return
    (step, *more) = plan.steps
    primitive = search.catalogue.get(str(step.primitive))
    if more or not isinstance(primitive, PytorchOnGpu) or primitive.compiled:
        return
    on, (model,) = replace(primitive.execution, compiled=True), network.models
    assert model.window is not None
    if plan.seconds < PAYS_SECONDS or is_compiled(model, model.window, on):
        return  # a compiled form that the plan does not take is slower, or fails
    folder = compiled_folder(model, model.window, on)
    about = (model.sha256, folder.name, *_tools())
    if why := REASONS.load(about):
        log.warning("%s; %s", why, UNCOMPILED)
        return
    name = model.given or model.file
    log.info("compiling %s for %s, once: the run takes %s", name, on.gpu, duration(plan.seconds))
    try:
        with telling_if_long(f"compiling {name}"):
            compile_model(model, model.window, on)
    except OSError as error:
        warn_not_stored(folder, error)
    except InvalidInput as error:
        why = str(error)
        log.warning("%s; %s", why, UNCOMPILED)
        if CANNOT_COMPILE in why and not any(each in why for each in PASSING):
            REASONS.store(about, why)


def _tools() -> tuple[object, ...]:
    """Return the compilers that are here. Once others are, a model that failed is tried again."""
    named = [os.environ[name] for name in ("CC", "CXX") if name in os.environ]
    return find_spec("triton") is not None, *map(which, (*COMPILERS, *named))
