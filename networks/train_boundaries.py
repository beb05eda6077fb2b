"""Train the demo's network on synthetic cells, and score it on new volumes.

    python networks/train_boundaries.py              train, save the weights, score them
    python networks/train_boundaries.py --evaluate   score the saved weights

Training is sparse: pooling has a stride, so a patch gives an output for every fourth voxel along
each axis. This output is compared with the truth at those voxels. ``znni infer`` runs the same
weights densely, and gives the output at every voxel.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy.ndimage import gaussian_filter
from scores import Scores, score
from synthetic_cells import Cells, Size, Tissue, synthetic_cells
from torch.nn import functional

from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import load_weights, random_weights

NETWORK_FILE = Path(__file__).with_name("boundaries.yaml")
TRAINING_SEEDS = range(48)
HELD_OUT_SEEDS = range(1000, 1032)
VOLUME_SIZE: Size = (96, 96, 96)
OUTPUTS = 8  # outputs per patch and axis
BATCH = 2  # patches per batch
STEPS = 2000
LEARNING_RATE = 2e-3
SEED = 1

Parameters = dict[str, torch.Tensor]


def logits(network: Network, parameters: Parameters, x: torch.Tensor) -> torch.Tensor:
    """Run the network with strided pooling and without its last activation.

    Args:
        network: a chain of poolings and convolutions; all convolutions but the last have ReLU.
        parameters: ``NAME.weight`` and ``NAME.bias`` of every convolution.
        x: scaled input, (n, f, z, y, x).
    """
    last = network.convolutions[-1]
    for layer in network.layers:
        if isinstance(layer, Conv):
            weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
            x = functional.conv3d(x, weight, bias)
            x = x if layer is last else functional.relu(x)
        else:
            x = functional.max_pool3d(x, tuple(layer.window))
    return x


def volumes(seeds: range) -> list[Cells]:
    """Make volumes of synthetic cells in parallel."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(partial(synthetic_cells, size=VOLUME_SIZE), seeds))


def batches(network: Network, cells: list[Cells]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random patches without end, with the truth at their outputs.

    Patches are flipped at random and have random contrast.

    Yields:
        Input (BATCH, 1, z, y, x) and truth (BATCH, 1, OUTPUTS, OUTPUTS, OUTPUTS), as float32.
    """
    random = np.random.default_rng(SEED)
    view, stride = network.field_of_view, network.total_pooling
    while True:
        inputs, truths = [], []
        for _ in range(BATCH):
            source = cells[random.integers(len(cells))]
            size = view + stride * (OUTPUTS - 1)
            start = [
                random.integers(n - m + 1) for n, m in zip(source.raw.shape, size, strict=True)
            ]
            patch = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
            seen = tuple(
                slice(v // 2, v // 2 + p * OUTPUTS, p) for v, p in zip(view, stride, strict=True)
            )
            axes = [0, *random.permutation([1, 2])]
            flips = [axis for axis in range(3) if random.random() < 0.5]
            raw = np.flip(source.raw[patch].transpose(axes), flips)
            truth = np.flip(source.boundary[patch].transpose(axes), flips)[seen]
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


def train(network: Network) -> Parameters:
    """Train from random weights with Adam; the learning rate rises and falls once."""
    started = time.monotonic()
    cells = volumes(TRAINING_SEEDS)
    print(f"made {len(cells)} volumes in {time.monotonic() - started:.0f} s")
    parameters = {}
    for name, layer in random_weights(network, SEED).layers.items():
        parameters[f"{name}.weight"] = torch.from_numpy(layer.weight).requires_grad_()
        parameters[f"{name}.bias"] = torch.from_numpy(layer.bias).requires_grad_()
    optimizer = torch.optim.Adam(parameters.values())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.15)
    mean_loss = 0.7
    for step, (x, truth) in zip(range(1, STEPS + 1), batches(network, cells), strict=False):
        optimizer.zero_grad()
        loss = balanced_loss(logits(network, parameters, x), truth)
        loss.backward()
        optimizer.step()
        schedule.step()
        mean_loss += 0.02 * (loss.item() - mean_loss)
        if step % 200 == 0:
            print(f"step {step}: loss {mean_loss:.3f}, {time.monotonic() - started:.0f} s")
    return {name: value.detach() for name, value in parameters.items()}


def evaluate(network: Network, parameters: Parameters) -> None:
    """Print the scores of the network and of thresholds on the held-out volumes.

    Both are scored at the same voxels, every fourth one along each axis.
    """
    seen = tuple(
        slice(v // 2, n - v // 2, p)
        for v, n, p in zip(network.field_of_view, VOLUME_SIZE, network.total_pooling, strict=True)
    )
    ours, thresholds = [], []
    for seed, cells in zip(HELD_OUT_SEEDS, volumes(HELD_OUT_SEEDS), strict=True):
        x = cells.raw * np.float32(network.scaling.scale) + np.float32(network.scaling.offset)
        with torch.no_grad():
            output = torch.sigmoid(logits(network, parameters, _tensor([x])))[0, 0].numpy()
        truth = cells.boundary[seen]
        ours.append(score(output, truth))
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
    parser.add_argument("--evaluate", action="store_true", help="score the saved weights only")
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    network = load_network(NETWORK_FILE)
    weights_file = NETWORK_FILE.with_suffix(".safetensors")
    if not parser.parse_args().evaluate:
        trained = train(network)
        save_file({name: value.numpy() for name, value in trained.items()}, weights_file)
    parameters = {}
    for name, layer in load_weights(weights_file, network).layers.items():
        parameters[f"{name}.weight"] = torch.from_numpy(layer.weight)
        parameters[f"{name}.bias"] = torch.from_numpy(layer.bias)
    evaluate(network, parameters)


if __name__ == "__main__":
    main()
