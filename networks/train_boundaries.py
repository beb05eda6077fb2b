"""Train a network of the demo on synthetic cells, and score it on new volumes.

    python networks/train_boundaries.py                     train the chain, save and score it
    python networks/train_boundaries.py --net cells-unet    the same for the U-Net
    python networks/train_boundaries.py --evaluate          score the saved weights

The chain is trained sparsely: pooling has a stride, so a patch gives an output for every fourth
voxel along each axis. ``znni infer`` runs the same weights densely, and gives an output at every
voxel. The U-Net gives an output at every voxel of a patch. It has batch norms while it is trained.
They are folded into the convolutions before the weights are saved.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy.ndimage import gaussian_filter
from scores import Scores, score
from synthetic_cells import Cells, Size, Tissue, synthetic_cells
from torch.nn import functional

from znni.core.shapes import Vec3
from znni.network.layers import Concat, Conv, Layer, Pool, Upsample
from znni.network.network import INPUT, Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, load_weights, random_weights

NETWORKS = Path(__file__).parent
TRAINING_SEEDS = range(48)
HELD_OUT_SEEDS = range(1000, 1032)
VOLUME_SIZE: Size = (96, 96, 96)
SEED = 1

Parameters = dict[str, torch.Tensor]
Norms = dict[str, torch.nn.BatchNorm3d]


class Course(NamedTuple):
    """The settings of a training run.

    Attributes:
        size: voxels of a patch.
        seen: the voxels of a patch whose outputs are compared with the truth.
        batch: patches per batch.
        steps: batches.
        learning_rate: the highest rate.
    """

    size: Vec3
    seen: tuple[slice, slice, slice]
    batch: int
    steps: int
    learning_rate: float


def course_for(network: Network) -> Course:
    """Return the settings: sparse outputs for a chain, whole patches for a U-Net."""
    if network.is_tiled:
        return Course(Vec3.of(64), (slice(None),) * 3, 4, 4000, 2e-3)
    view, stride, outputs = network.field_of_view, network.total_pooling, 8
    z, y, x = (slice(v // 2, v // 2 + p * outputs, p) for v, p in zip(view, stride, strict=True))
    return Course(view + stride * (outputs - 1), (z, y, x), 2, 2000, 2e-3)


def logits(
    network: Network, parameters: Parameters, x: torch.Tensor, norms: Norms | None = None
) -> torch.Tensor:
    """Run the network with strided pooling and without its last activation.

    Args:
        network: all its convolutions but the last have ReLU.
        parameters: ``NAME.weight`` and ``NAME.bias`` of every convolution.
        x: scaled input, (n, f, z, y, x).
        norms: a batch norm for each convolution but the last; none if they are folded.
    """
    values = {INPUT: x}
    for node in network.nodes:
        given = [values[name] for name in node.inputs]
        made = _computed(node.layer, parameters, given)
        if norms and node.layer.name in norms:
            made = norms[node.layer.name](made)
        if isinstance(node.layer, Conv) and node.layer.name != network.output:
            made = functional.relu(made)
        values[node.layer.name] = made
    return values[network.output]


def _computed(layer: Layer, parameters: Parameters, given: list[torch.Tensor]) -> torch.Tensor:
    """Compute a layer without its activation."""
    if isinstance(layer, Conv):
        weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
        return functional.conv3d(given[0], weight, bias, padding=tuple(layer.padding.before))
    if isinstance(layer, Pool):
        return functional.max_pool3d(given[0], tuple(layer.window))
    if isinstance(layer, Upsample):
        return functional.interpolate(given[0], scale_factor=tuple(map(float, layer.factor)))
    if isinstance(layer, Concat):
        return torch.cat(given, dim=1)
    raise TypeError(f"{layer.name} is not trained here: {layer}")


def volumes(seeds: range) -> list[Cells]:
    """Make volumes of synthetic cells in parallel."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(synthetic_cells, size=VOLUME_SIZE), seeds))


def batches(
    network: Network, course: Course, cells: list[Cells]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random patches without end, with the truth at their outputs.

    Patches are flipped at random and have random contrast.

    Yields:
        Input (batch, 1, z, y, x) and truth (batch, 1, z', y', x'), as float32.
    """
    random = np.random.default_rng(SEED)
    while True:
        inputs, truths = [], []
        for _ in range(course.batch):
            source = cells[random.integers(len(cells))]
            start = [
                random.integers(n - m + 1)
                for n, m in zip(source.raw.shape, course.size, strict=True)
            ]
            patch = tuple(slice(a, a + n) for a, n in zip(start, course.size, strict=True))
            axes = [0, *random.permutation([1, 2])]
            flips = [axis for axis in range(3) if random.random() < 0.5]
            raw = np.flip(source.raw[patch].transpose(axes), flips)
            truth = np.flip(source.boundary[patch].transpose(axes), flips)[course.seen]
            x = raw * np.float32(network.scaling.scale) + np.float32(network.scaling.offset)
            inputs.append(x * random.uniform(0.7, 1.4) + random.uniform(-0.15, 0.15))
            truths.append(truth)
        yield _tensor(inputs), _tensor(truths)


def _tensor(arrays: Sequence[NDArray[np.floating] | NDArray[np.bool_]]) -> torch.Tensor:
    return torch.from_numpy(np.stack(arrays)[:, np.newaxis].astype(np.float32))


def balanced_loss(output: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return binary cross-entropy that weighs boundary and background of a batch equally."""
    share = truth.mean().clamp(0.01, 0.99)
    weight = torch.where(truth > 0, 0.5 / share, 0.5 / (1 - share))
    return functional.binary_cross_entropy_with_logits(output, truth, weight)


def train(network: Network, device: str) -> Parameters:
    """Train from random weights with Adam; the learning rate rises and falls once."""
    started, course = time.monotonic(), course_for(network)
    cells = volumes(TRAINING_SEEDS)
    print(f"made {len(cells)} volumes in {time.monotonic() - started:.0f} s")
    parameters = {
        name: value.to(device).requires_grad_()
        for name, value in _tensors(random_weights(network, SEED)).items()
    }
    norms: Norms = {}
    if network.is_tiled:
        for conv in network.convolutions[:-1]:
            norms[conv.name] = torch.nn.BatchNorm3d(conv.out_features, device=device)
    learned = [*parameters.values(), *(p for norm in norms.values() for p in norm.parameters())]
    optimizer = torch.optim.Adam(learned)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, course.learning_rate, course.steps, pct_start=0.15
    )
    mean_loss = 0.7
    examples = batches(network, course, cells)
    for step, (x, truth) in zip(range(1, course.steps + 1), examples, strict=False):
        optimizer.zero_grad()
        output = logits(network, parameters, x.to(device), norms)
        loss = balanced_loss(output, truth.to(device))
        loss.backward()
        optimizer.step()
        schedule.step()
        mean_loss += 0.02 * (loss.item() - mean_loss)
        if step % 200 == 0:
            print(f"step {step}: loss {mean_loss:.3f}, {time.monotonic() - started:.0f} s")
    return folded({name: value.detach() for name, value in parameters.items()}, norms)


def folded(parameters: Parameters, norms: Norms) -> Parameters:
    """Fold each batch norm into its convolution, and return the new parameters."""
    found = dict(parameters)
    for name, norm in norms.items():
        assert norm.running_var is not None
        assert norm.running_mean is not None
        factor = norm.weight.detach() / torch.sqrt(norm.running_var + norm.eps)
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        found[f"{name}.weight"] = weight * factor[:, None, None, None, None]
        found[f"{name}.bias"] = (bias - norm.running_mean) * factor + norm.bias.detach()
    return {name: value.cpu() for name, value in found.items()}


def _tensors(weights: Weights) -> Parameters:
    found = {}
    for name, layer in weights.layers.items():
        found[f"{name}.weight"] = torch.from_numpy(layer.weight)
        found[f"{name}.bias"] = torch.from_numpy(layer.bias)
    return found


def evaluate(network: Network, parameters: Parameters, device: str) -> None:
    """Print the scores of the network and of thresholds on the held-out volumes.

    All are scored at the voxels at which the chain, run sparsely, gives an output: every fourth one
    along each axis.
    """
    chain = load_network(NETWORKS / "boundaries.yaml")
    seen = tuple(
        slice(v // 2, n - v // 2, p)
        for v, n, p in zip(chain.field_of_view, VOLUME_SIZE, chain.total_pooling, strict=True)
    )
    parameters = {name: value.to(device) for name, value in parameters.items()}
    ours, thresholds = [], []
    for seed, cells in zip(HELD_OUT_SEEDS, volumes(HELD_OUT_SEEDS), strict=True):
        x = cells.raw * np.float32(network.scaling.scale) + np.float32(network.scaling.offset)
        with torch.no_grad():
            made = torch.sigmoid(logits(network, parameters, _tensor([x]).to(device)))
        output = made[0, 0].cpu().numpy()
        truth = cells.boundary[seen]
        ours.append(score(output[seen] if network.is_tiled else output, truth))
        thresholds.append(_best_threshold(cells.raw, seen, truth))
        section = Tissue.draw(np.random.default_rng(seed)).section
        print(
            f"volume {seed}, sections {section:.1f} pixels thick, "
            f"{truth.mean():.0%} boundary: {ours[-1]}"
        )
        print(f"    best smoothed threshold: {thresholds[-1]}")
    print(f"mean, network:   {_mean(ours)}")
    print(f"mean, threshold: {_mean(thresholds)}")


def _best_threshold(
    raw: NDArray[np.uint8], seen: tuple[slice, ...], truth: NDArray[np.bool_]
) -> Scores:
    """Return the best score of smoothing and a threshold; the truth chooses width and sign."""
    smoothed = [
        gaussian_filter(raw.astype(np.float32), width)[seen] for width in (0, 0.7, 1, 1.5, 2, 3)
    ]
    return max(
        (score(sign * values, truth) for values in smoothed for sign in (1, -1)),
        key=lambda scores: scores.average_precision,
    )


def _mean(scores: list[Scores]) -> Scores:
    return Scores(*np.mean(scores, axis=0))


def main() -> None:
    """Train, unless only evaluation is requested; then evaluate."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--net", choices=("boundaries", "cells-unet"), default="boundaries")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--evaluate", action="store_true", help="score the saved weights only")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    # On GPUs, some gradients have no algorithm that always gives the same bits.
    torch.use_deterministic_algorithms(arguments.device == "cpu")
    network_file = NETWORKS / f"{arguments.net}.yaml"
    network, weights_file = load_network(network_file), network_file.with_suffix(".safetensors")
    if not arguments.evaluate:
        trained = train(network, arguments.device)
        save_file({name: value.numpy() for name, value in trained.items()}, weights_file)
    evaluate(network, _tensors(load_weights(weights_file, network)), arguments.device)


if __name__ == "__main__":
    main()
