"""What trains the networks that come with znni computes what znni computes with their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paths import NETWORKS
from threadpoolctl import threadpool_limits

import znni
from znni.core.shapes import Vec3
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import load_weights, random_weights

torch = pytest.importorskip("torch", reason="the networks are trained in PyTorch")


def chain(name: str, first: int, kernel: int) -> Network:
    """Return a small network with the layers of the benchmark networks."""
    return Network.chain(
        name,
        1,
        (
            Conv("conv1", 1, 4, Vec3.of(first), "relu"),
            Pool("pool1", Vec3.of(2)),
            Conv("conv2", 4, 5, Vec3.of(kernel), "relu"),
            Pool("pool2", Vec3.of(2)),
            Conv("conv3", 5, 3, Vec3.of(kernel), "relu"),
        ),
        InputScaling(scale=1 / 255, offset=-0.5),
    )


SMALL, LARGE = chain("small", 2, 3), chain("large", 4, 5)


@pytest.mark.parametrize("spacing", [1, 2, 4])
def test_outputs_that_lie_apart_are_those_of_the_dense_output(spacing: int) -> None:
    from strided import outputs_at, tensors

    weights, margin = random_weights(SMALL, 3), 12
    size = [2 * margin + n for n in (8, 16, 12)]
    raw = np.random.default_rng(1).integers(0, 255, size, dtype=np.uint8)
    beside = margin - SMALL.field_of_view.z // 2
    inner = raw[(slice(beside, -beside or None),) * 3]
    dense = znni.Inferer(SMALL, weights=weights, threads=1)(inner)
    found = outputs_at(SMALL, tensors(weights), raw, margin, spacing)
    expected = dense[:, ::spacing, ::spacing, ::spacing]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_a_network_grows_without_a_change_of_its_output() -> None:
    from strided import grown, outputs_at, tensors

    raw = np.random.default_rng(2).integers(0, 255, (50, 54, 58), dtype=np.uint8)
    weights = tensors(random_weights(SMALL, 4))
    small = outputs_at(SMALL, weights, raw, 21, 2)
    large = outputs_at(LARGE, grown(weights, LARGE), raw, 21, 2)
    assert LARGE.field_of_view.z > SMALL.field_of_view.z
    np.testing.assert_allclose(large, small, rtol=1e-4, atol=1e-4 * np.abs(small).max())


@pytest.mark.parametrize(
    "network", [load_network(NETWORKS / "cells-unet.yaml"), SMALL], ids=lambda it: it.name
)
def test_folded_weights_give_what_batch_norms_gave(network: Network) -> None:
    from strided import folded, logits, norms_for, tensors

    generator = torch.Generator().manual_seed(5)
    parameters, norms = tensors(random_weights(network, 5)), norms_for(network, "cpu")
    x = torch.randn((2, 1, 24, 24, 24), generator=generator)
    with torch.no_grad():
        for norm in norms.values():
            norm.momentum = 0.5
            norm.bias.copy_(torch.randn(norm.bias.shape, generator=generator))
        for _ in range(3):  # the running statistics move
            logits(network, parameters, x, norms)
        for norm in norms.values():
            norm.eval()
        expected = logits(network, parameters, x, norms)
        found = logits(network, folded(parameters, norms), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_training_lowers_the_loss_and_saves_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import train_boundaries

    course = train_boundaries.Course(
        seeds=range(2),
        size=(40, 40, 40),
        first=1,
        every=50,
        outputs=6,
        spacing=2,
        batch=2,
        steps=600,
        learning_rate=1e-2,
        half=True,
    )
    monkeypatch.setitem(train_boundaries.COURSES, "small", course)
    place = tmp_path / "small.safetensors"
    with threadpool_limits(1):  # several threads hand over more than they compute
        train_boundaries.train(SMALL, "cpu", place)
    losses = [
        float(line.split("loss ")[1].split(",")[0])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("step")
    ]
    assert losses[-1] < 0.24 < losses[0]  # 0.25 is the loss of one half everywhere
    saved = load_weights(place, SMALL)
    assert b'"dtype":"F16"' in place.read_bytes()
    assert saved["conv1"].weight.dtype == np.float32


def test_the_unet_is_trained_at_every_voxel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train_boundaries

    course = train_boundaries.COURSES["cells-unet"]._replace(
        seeds=range(1), size=(24, 24, 24), first=1, outputs=16, batch=1, steps=2
    )
    monkeypatch.setitem(train_boundaries.COURSES, "cells-unet", course)
    network, place = load_network(NETWORKS / "cells-unet.yaml"), tmp_path / "unet.safetensors"
    with threadpool_limits(1):
        train_boundaries.train(network, "cpu", place)
    assert load_weights(place, network).nbytes > 0
