"""``python -m bench gpu-layers``: measurements on a GPU."""

from __future__ import annotations

from itertools import starmap
from typing import Annotated

import typer

from bench import options
from bench.gpu_ceilings import measure_gpu_ceilings
from bench.gpu_layers import compare_gpu_layer
from bench.layers import Layer, check_primitives, convolution_of
from bench.record import Row
from bench.session import layers_of, progress, report_all
from znni.errors import InvalidInput
from znni.gpus import why_no_gpu
from znni.machine import detect_machine
from znni.primitive import catalogue
from znni.shapes import Shape5


def gpu_layers_command(
    kernel: options.Kernels,
    batch: options.Batches = [64],  # noqa: B006
    size: options.Sizes = [34],  # noqa: B006
    features: options.Features = 80,
    out_features: options.OutFeatures = 80,
    pool: Annotated[
        int | None, typer.Option(min=1, help="Pool by so many voxels per axis.")
    ] = None,
    only: options.Only = None,
    peers: Annotated[bool, typer.Option(help="PyTorch, too.")] = True,
    repeats: options.Repeats = 9,
    out: options.Out = None,
) -> None:
    """Every primitive for GPUs on one convolution, beside PyTorch's, on the same GPU."""
    machine = detect_machine()
    check_primitives(only or [], machine)
    if not machine.gpus:
        raise InvalidInput(f"gpu-layers needs a GPU: {why_no_gpu()}")
    primitives = [
        primitive
        for primitive in catalogue(machine).values()
        if primitive.device.kind == "gpu" and primitive.name in (only or [primitive.name])
    ]
    ceilings = measure_gpu_ceilings()
    typer.echo(ceilings)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_gpu_layer(primitives, operation, shape, repeats, ceilings, peers=peers)

    layers = layers_of(kernel, batch, size, features, out_features, pool)
    report_all("gpu-layers", starmap(compared, layers), [ceilings], out)
