"""Compilation of PyTorch's models for a GPU, before a long run."""

from __future__ import annotations

import logging
from dataclasses import replace

from znni.core.errors import InvalidInput, ZnniError
from znni.core.logged import telling_if_long
from znni.core.plan_options import Choices
from znni.core.processors import may_use_gpu
from znni.core.shapes import Vec3
from znni.core.text import duration
from znni.core.user_cache import warn_not_stored
from znni.core.value_cache import ValueCache
from znni.inference import planning
from znni.network.model_files import compile_model, compiled_file
from znni.network.model_on_gpu import CANNOT_COMPILE
from znni.network.network import Network
from znni.primitives.other_library.on_gpu import PytorchOnGpu

log = logging.getLogger("znni")

# Compilation pays off if a run takes longer. On an H200, SwinUNETR took 66 s to compile. A
# window of 96^3 then took 16 ms instead of 28.
PAYS_SECONDS = 240.0

# The reasons why models cannot be compiled. All of them are text.
REASONS = ValueCache("models", 2, str)


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
    about = (model.sha256, compiled_file(model, model.window, on).name)
    if plan.seconds < PAYS_SECONDS or REASONS.load(about):
        return
    name = model.given or model.file
    log.info("compiling %s for %s, once: the run takes %s", name, on.gpu, duration(plan.seconds))
    try:
        with telling_if_long(f"compiling {name}"):
            compile_model(model, model.window, on)
    except OSError as error:
        warn_not_stored(compiled_file(model, model.window, on), error)
    except InvalidInput as error:
        log.warning("%s; so it is computed layer by layer", error)
        if CANNOT_COMPILE in str(error) and "out of memory" not in str(error):
            REASONS.store(about, str(error))
