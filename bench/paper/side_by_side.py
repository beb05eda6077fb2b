"""A layer's batch shared between the host's processors and a GPU (Caffe con Troll, Figure 9)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.accuracy import normal
from bench.layers import Layer, about_layer, layers_of, weights_of
from bench.paper.contests import contest
from bench.record import Row
from bench.rounds import Effort
from planner.cost_model import CostModel
from planner.micro_batches import Offer
from planner.side_by_side import items_on_host, offer_of_both
from znni.calibration.choice import cost_model
from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5
from znni.machine.arena import Arena, output_into
from znni.machine.device_arena import DeviceArena
from znni.machine.locked_arrays import pinned
from znni.machine.machine_choice import machine_for
from znni.network.weights import Float32
from znni.plans.primitive import Catalogue, Primitive, Run, UsesGpu, on_device
from znni.primitives.catalogue import catalogue

# The share that others are compared with.
ON_GPU = "GPU alone"


def side_by_side_command(
    kernel: session.Kernels = [3, 5],  # noqa: B006
    batch: session.Batches = [8, 32],  # noqa: B006
    size: session.Sizes = [48, 64],  # noqa: B006
    features: session.Features = 80,
    out_features: session.OutFeatures = 80,
    machine: Annotated[
        Path | None,
        typer.Option(help="A machine's file: predict its times. Default: measure this one."),
    ] = None,
    costs: session.CostsChoice = "built-in",
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 1.0,
    out: session.Out = None,
) -> None:
    """Compute a layer on the host, on the GPU from the host's memory, and on both at the same time.

    Shares of a batch are those of the planner, those next to them, and quarters. Gains are over the
    GPU alone.
    """
    effort = None if machine else Effort(repeats, budget)
    there = machine_for(machine, None, threads) if machine else session.machine_with("gpu", threads)
    known = {
        name: primitive
        for name, primitive in on_device(catalogue(there), "cpu").items()
        if primitive.accuracy <= ACCURACIES["float32"]
    }
    model = cost_model(known, costs, absent=machine is not None)
    typer.echo(f"predicted times: {model.source}")
    layers = layers_of(kernel, batch, size, [(features, out_features)])
    processors = f"{there.host.threads} cores and {there.gpus[0].name}" if there.gpus else ""
    compared = partial(compare_shares, processors, known, model, effort)
    session.report_all("evaluations", starmap(compared, layers), [], out)


def compare_shares(
    processors: str,
    known: Catalogue,
    model: CostModel,
    effort: Effort | None,
    layer: Layer,
    shape: Shape5,
) -> list[Row]:
    """Return a row for each share of a batch, with its predicted and its measured time.

    Args:
        processors: the machine, as rows name it.
        known: primitives of the host.
        model: predicts their times.
        effort: how long to measure; None to predict only.
        layer: what is computed.
        shape: of its input.
    """
    planned, offers = offers_of_shares(known, model, layer, shape)
    about, batch = about_layer(layer, shape), shape.n
    case: Row = {
        "figure": "Caffe con Troll, 9",
        "case": f"{processors}: kernel {about['kernel']}, {about['maps']} maps, "
        f"{batch} x {shape.size}",
    }
    names = {0: ON_GPU, batch: "host alone"}
    names |= {items: f"{items} of {batch} on the host" for items in offers if 0 < items < batch}
    contestants = {names[items]: offer for items, offer in offers.items()}
    measured = {row["name"]: row for row in _measured(case, contestants, layer, shape, effort)}
    return [
        measured.get(names[items], {**case, "name": names[items]})
        | {
            "family": offer.primitive.name,
            "items": batch,
            "items_on_host": items,
            "planned_on_host": planned,
            "predicted_seconds": offer.seconds,
            "predicted_gain": offers[0].seconds / offer.seconds,
        }
        for items, offer in offers.items()
    ]


def offers_of_shares(
    known: Catalogue, model: CostModel, layer: Layer, shape: Shape5
) -> tuple[int, dict[int, Offer]]:
    """Return the items that the planner gives the host, and offers by items on the host.

    Raises:
        InvalidInput: no primitive of the host computes the layer on a GPU.
    """

    def priced(primitive: Primitive, items: int) -> Offer | None:
        some = shape._replace(n=items)
        if primitive.out_shape(layer, some) is None:
            return None
        cost = primitive.cost(layer, some)
        return Offer(primitive, items, cost, *model.estimate(primitive, layer, some, cost))

    whole = [offer for primitive in known.values() if (offer := priced(primitive, shape.n))]
    using = [offer for offer in whole if isinstance(offer.primitive, UsesGpu)]
    if not using:
        raise InvalidInput("no primitive of the host computes this layer on a GPU; is there one?")
    on_gpu = min(using, key=lambda offer: offer.seconds)
    own = min((it for it in whole if it not in using), key=lambda offer: offer.seconds)
    planned = items_on_host(own, on_gpu)
    shared = {
        items: both
        for items in shares_of(shape.n, planned)
        if (both := offer_of_both(layer, shape, items, own, on_gpu, priced))
    }
    return planned, {0: on_gpu, **shared, shape.n: own}


def shares_of(batch: int, planned: int) -> Sequence[int]:
    """Return the items for the host that are compared: around the planned ones, and quarters."""
    near, quarters = range(planned - 1, planned + 3), (batch * it // 4 for it in range(1, 4))
    return sorted(items for items in {*near, *quarters} if 0 < items < batch)


def _measured(
    case: Row, offers: dict[str, Offer], layer: Layer, shape: Shape5, effort: Effort | None
) -> list[Row]:
    """Return a row for each share that was measured, from and to page-locked memory."""
    if not effort:
        return []
    out = next(iter(offers.values())).primitive.out_shape(layer, shape)
    assert out is not None
    x, y, weights = pinned(shape), pinned(out), weights_of(layer)
    x[...] = normal(shape._replace(n=1))
    memories = [offer.cost.memory for offer in offers.values()]
    on_gpu = DeviceArena(max(memory.gpu_working for memory in memories))
    with Arena(max(memory.workspace for memory in memories)).in_use(), on_gpu.in_use():
        runs = {
            name: partial(_run_into, offer.primitive.build(layer, shape, weights), x, y)
            for name, offer in offers.items()
        }
        return contest(case, runs, effort, "cpu", ON_GPU)


def _run_into(run: Run, x: Float32, y: Float32) -> None:
    with output_into(y):
        run(x)
