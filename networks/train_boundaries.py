"""Train networks on synthetic cells, and score them on new volumes.

    python networks/train_boundaries.py                        train the small chain, and score it
    python networks/train_boundaries.py n537 --device cuda     the same for another network
    python networks/train_boundaries.py n337 n537 --evaluate   score saved weights

Chains are trained sparsely: pooling has a stride, and a patch gives an output for every fourth
voxel along each axis. The U-Net gives an output at every voxel of a patch. All networks but
the small chain have batch norms while they are trained. They are folded into the convolutions
before the weights are saved.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from evaluation import SEEDS, SIZE, Trained, evaluate
from safetensors.numpy import save_file
from strided import Parameters, folded, grown, is_probability, logits, norms_for, tensors
from torch.nn import functional

from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import load_weights, random_weights, weights_for
from znni.volumes.synthetic_cells import Cells, Size, synthetic_cells

NETWORKS = Path(__file__).parent
SEED = 1


class Course(NamedTuple):
    """The settings of a training run.

    Attributes:
        seeds: seeds of the volumes.
        size: extents of a volume.
        first: the number of volumes that training begins with.
        every: the steps after which one more volume joins them, until all are there.
        outputs: outputs of a patch along each axis.
        spacing: distance between outputs in voxels.
        batch: patches per batch.
        steps: batches.
        learning_rate: the highest rate.
        norms: whether all convolutions but the last have batch norms.
        half: whether a GPU computes in bfloat16, and the weights are stored in float16.
        begins: the trained network whose kernels are the middle of this one's at the beginning.
    """

    seeds: range
    size: Size
    first: int
    every: int
    outputs: int
    spacing: int
    batch: int
    steps: int
    learning_rate: float
    norms: bool = True
    half: bool = False
    begins: str | None = None


COURSES = {
    "boundaries": Course(
        seeds=range(48),
        size=(96, 96, 96),
        first=48,
        every=1,
        outputs=8,
        spacing=4,
        batch=2,
        steps=2000,
        learning_rate=2e-3,
        norms=False,
    ),
    "cells-unet": Course(
        seeds=range(48),
        size=(96, 96, 96),
        first=48,
        every=1,
        outputs=64,
        spacing=1,
        batch=4,
        steps=4000,
        learning_rate=2e-3,
    ),
    "n337": Course(
        seeds=range(10_000, 10_048),
        size=(180, 180, 180),
        first=16,
        every=25,
        outputs=24,
        spacing=4,
        batch=4,
        steps=2790,
        learning_rate=2e-3,
        half=True,
    ),
    "n537": Course(
        seeds=range(11_000, 11_032),
        size=(224, 224, 224),
        first=16,
        every=8,
        outputs=16,
        spacing=4,
        batch=2,
        steps=760,
        learning_rate=2e-4,
        norms=False,
        half=True,
        begins="n337",
    ),
}


def volumes(seeds: range, size: Size) -> Iterator[Cells]:
    """Yield volumes of synthetic cells, which processes make ahead."""
    ahead: deque[Future[Cells]] = deque()
    with ProcessPoolExecutor() as pool:
        for seed in seeds:
            ahead.append(pool.submit(synthetic_cells, seed, size))
            if len(ahead) > 2 * (os.cpu_count() or 1):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


class Example(NamedTuple):
    """A volume and its truth on the device that trains.

    Attributes:
        raw: the picture, (z, y, x), uint8.
        truth: the values that the network is to give, (f, z, y, x), bool.
    """

    raw: torch.Tensor
    truth: torch.Tensor


def example_of(cells: Cells, network: Network, device: str) -> Example:
    """Return a volume with the truth of each map: membrane, cytoplasm and organelles, or less."""
    cytoplasm = ~(cells.boundary | cells.organelle)
    maps = (cells.boundary, cytoplasm, cells.organelle)[: network.out_features]
    return Example(
        torch.from_numpy(cells.raw).to(device), torch.from_numpy(np.stack(maps)).to(device)
    )


def batches(
    network: Network, course: Course, given: Iterator[Example]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random patches, with the truth at their outputs.

    Patches are flipped at random and have random contrast.

    Yields:
        Input (batch, 1, z, y, x) and truth (batch, f, z', y', x'), as float32.
    """
    random = np.random.default_rng(SEED)
    examples = list(islice(given, course.first))
    size, seen = _patch(network, course)
    for step in range(1, course.steps + 1):
        inputs, truths = [], []
        for _ in range(course.batch):
            source = examples[random.integers(len(examples))]
            start = [
                random.integers(n - m + 1) for n, m in zip(source.raw.shape, size, strict=True)
            ]
            patch = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
            axes = [0, *random.permutation([1, 2])]
            flips = [axis for axis in range(3) if random.random() < 0.5]
            raw = source.raw[patch].permute(*axes).flip(flips)
            truth = source.truth[:, *patch].permute(0, *(1 + axis for axis in axes))
            x = raw * network.scaling.scale + network.scaling.offset
            inputs.append(x * random.uniform(0.7, 1.4) + random.uniform(-0.15, 0.15))
            truths.append(truth.flip([1 + axis for axis in flips])[:, *seen])
        yield torch.stack(inputs)[:, None], torch.stack(truths).float()
        if step % course.every == 0:
            examples += islice(given, 1)


def _patch(network: Network, course: Course) -> tuple[Vec3, tuple[slice, ...]]:
    """Return the extents of a patch, and its voxels whose outputs are compared with the truth."""
    between = course.spacing * (course.outputs - 1)
    if network.is_tiled:
        return Vec3.of(course.outputs), (slice(None),) * 3
    view = network.field_of_view
    seen = tuple(slice(v // 2, v // 2 + between + 1, course.spacing) for v in view)
    return view + Vec3.of(between), seen


def balanced_loss(network: Network, output: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch, in which each map's true and false voxels weigh the same.

    It is binary cross-entropy for probabilities, and the squared error for other outputs.
    """
    share = truth.mean(dim=(0, 2, 3, 4), keepdim=True).clamp(0.01, 0.99)
    weight = torch.where(truth > 0, 0.5 / share, 0.5 / (1 - share))
    if is_probability(network):
        return functional.binary_cross_entropy_with_logits(output, truth, weight)
    return (weight * (output - truth) ** 2).mean()


def train(network: Network, device: str, place: Path) -> None:
    """Train from random weights with Adam, and save the weights.

    The learning rate rises and falls once.
    """
    started, course = time.monotonic(), COURSES[network.name]
    made = volumes(course.seeds, course.size)
    examples = batches(network, course, (example_of(cells, network, device) for cells in made))
    parameters = {
        name: value.to(device).requires_grad_()
        for name, value in _first_weights(network, course).items()
    }
    norms = norms_for(network, device) if course.norms else {}
    learned = [*parameters.values(), *(norm.bias for norm in norms.values())]
    optimizer = torch.optim.Adam(learned)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, course.learning_rate, course.steps, pct_start=0.15
    )
    half = course.half and device == "cuda"
    layout = torch.channels_last_3d if half else torch.contiguous_format
    losses = []
    for step, (x, truth) in enumerate(examples, 1):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=half):
            given = x.to(memory_format=layout)
            output = logits(network, parameters, given, norms, course.spacing)
        loss = balanced_loss(network, output.float(), truth)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 100 == 0:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            print(f"step {step}: loss {mean:.4f}, {time.monotonic() - started:.0f} s", flush=True)
            save(folded(_detached(parameters), norms), place)
    save(folded(_detached(parameters), norms), place, np.float16 if course.half else np.float32)


def _first_weights(network: Network, course: Course) -> Parameters:
    if course.begins is None:
        return tensors(random_weights(network, SEED))
    smaller = load_network(NETWORKS / f"{course.begins}.yaml")
    return grown(tensors(weights_for(smaller, None, None)), network)


def _detached(parameters: Parameters) -> Parameters:
    return {name: value.detach() for name, value in parameters.items()}


def save(parameters: Parameters, place: Path, dtype: type[np.floating] = np.float32) -> None:
    """Write a weights file."""
    save_file({name: value.numpy().astype(dtype) for name, value in parameters.items()}, place)


def main() -> None:
    """Train, unless only evaluation is requested; then evaluate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(COURSES)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--evaluate", action="store_true", help="score the saved weights only")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    # On GPUs, some gradients have no algorithm that always gives the same bits.
    torch.use_deterministic_algorithms(arguments.device == "cpu")
    torch.backends.cudnn.benchmark = True
    trained: dict[str, Trained] = {}
    for name in arguments.nets or ["boundaries"]:
        network = load_network(NETWORKS / f"{name}.yaml")
        place = NETWORKS / f"{name}.safetensors"
        if not arguments.evaluate:
            train(network, arguments.device, place)
        found = tensors(load_weights(place, network))
        on_device = {name: value.to(arguments.device) for name, value in found.items()}
        trained[name] = Trained(network, on_device)
    evaluate(trained, volumes(SEEDS, SIZE))


if __name__ == "__main__":
    main()
