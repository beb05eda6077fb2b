"""Devices that run a plan's layers: the host, the GPU or both."""

from __future__ import annotations

from functools import partial

from planner.partition import cut_points
from znni.core.errors import InvalidInput, option
from znni.core.packages import BACKENDS, offers
from znni.core.processors import FASTEST, GPU, DeviceChoice, may_use_gpu, may_use_host, needs_gpu
from znni.inference.gpu_choice import CPU, why_none
from znni.machine.gpus import not_installed_for_gpu
from znni.machine.machine import Machine
from znni.network.description import describe_layer
from znni.network.layers import Layer
from znni.network.network import Network
from znni.plans.primitive import Catalogue, on_device, without_gpu

USE_CPU = f"give {CPU}"


def check_installed(device: DeviceChoice) -> None:
    """Check that what a device needs is installed here, without a start of CUDA.

    Raises:
        InvalidInput: a GPU is requested, and its driver or library is missing.
    """
    if needs_gpu(device) and not offers(BACKENDS) and (missing := not_installed_for_gpu()):
        raise InvalidInput(f"{option('device', device)}: {missing}; {USE_CPU}")


def check_gpu(machine: Machine, device: DeviceChoice) -> None:
    """Check that a machine has a GPU, if one is requested.

    Raises:
        InvalidInput: it has none.
    """
    if needs_gpu(device) and not machine.gpus:
        raise InvalidInput(f"{option('device', device)}: {why_none(machine)}; {USE_CPU}")


def primitives_for(
    network: Network, primitives: Catalogue, machine: Machine, device: DeviceChoice
) -> Catalogue:
    """Return the primitives of the devices that may run layers. They are found when needed.

    If the GPU must run all layers and no GPU primitive can run one of them, finding them raises
    ``InvalidInput``.

    Args:
        network: the network to run.
        primitives: primitives of the machine that have the requested accuracy.
        machine: the machine to run on.
        device: the user's choice of device; ``gpu`` is the machine's first one.

    Raises:
        InvalidInput: a GPU is requested and the machine has none. Or the network cannot be divided
            so.
    """
    if device == FASTEST:
        return primitives
    if not may_use_gpu(device):
        return without_gpu(primitives)
    check_gpu(machine, device)
    if not cut_points(network, device):
        gpu = option("device", GPU)
        raise InvalidInput(
            f"{option('device', device)}: all layers of this network are computed on one device; "
            f"give {gpu}, or {CPU}"
        )
    if may_use_host(device):
        return primitives
    return on_device(primitives, GPU, partial(_check_all_done, network))


def _check_all_done(network: Network, on_gpu: Catalogue) -> None:
    """Check that a GPU can run all layers.

    Raises:
        InvalidInput: no GPU primitive can run one of them.
    """
    if missing := _first_not_done(network, on_gpu):
        layer = describe_layer(network, missing)
        raise InvalidInput(f"no GPU primitive of this accuracy computes layer {layer}; {USE_CPU}")


def _first_not_done(network: Network, primitives: Catalogue) -> Layer | None:
    """Return the first layer that no primitive can run alone in any of the sampled shapes."""
    from planner.bare_steps import sample_steps  # a kept plan needs none

    for node in network.nodes:
        if not any(
            primitive.out_shape(step.operation, step.shape_in) == step.shape_out
            for step in sample_steps(*network.operations[node.name])  # most layers need few of them
            for primitive in primitives.values()
        ):
            return node.layer
    return None
