"""Windows on a GPU: blocks of any size and region give the framework's sums, within the memory."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_layers import chips, needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_resources import resource_usage
from window_networks import blended, network, volume

from znni.core.option_types import WindowRules
from znni.core.shapes import Box, Vec3
from znni.engine.after_blending import Blended
from znni.engine.backends.cuda import labels as device_labels
from znni.engine.backends.cuda import window_sums as device_window_sums
from znni.engine.backends.cuda.labels import DeviceLabels
from znni.engine.labels import Labels
from znni.inference import api
from znni.inference.inferer import Inferer
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.machine.cuda import cupy
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import ConvWeights, Float32, random_weights
from znni.network.window import Window
from znni.plans.rewrites.deferred_head import with_deferred_head
from znni.primitives.gpu.common.hardware import Chip
from znni.volumes.locate import open_volume

on_gpu = pytest.mark.gpu
OPTIONS: Any = {"device": "gpu", "costs": "built-in", "threads": 2}
SIZE = Vec3(20, 23, 25)

# A U-Net with instance norms, as nnU-Net makes them.
PLAIN_UNET = """\
name: plain
layers:
  - conv: {features: 16, kernel: 3, padding: same}
  - name: skip
    instance_norm: {activation: leaky_relu}
  - conv: {features: 32, kernel: 3, stride: 2, padding: 1}
  - instance_norm: {activation: leaky_relu}
  - conv: {features: 32, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - conv_transpose: {features: 16, kernel: 2, stride: 2}
  - concat: {}
    from: [conv_transpose1, skip]
  - conv: {features: 16, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - name: head
    conv: {features: 40, kernel: 1, activation: identity}
"""


def output(net: Network, x: Float32, patch: Vec3, roi: Box | None = None, **options: Any) -> Any:
    """Return what a run on the GPU gives, in blocks of a size."""
    rule = {name: options[name] for name in ("labels", "threshold") if name in options}
    plan = search(net, Vec3(*x.shape[1:]), roi=roi, **rule, **OPTIONS).fastest_for(patch)
    assert plan is not None
    maps = 1 if "labels" in options else net.out_features
    size = roi.size if roi else x.shape[1:]
    out = np.full((maps, *size), 77, np.uint8 if rule else np.float32)
    api.infer(x, net, out, weights=random_weights(net, 7), plan=plan, roi=roi, **OPTIONS, **options)
    return out


@on_gpu
@settings(max_examples=12)
@given(st.data())
def test_blocks_give_the_sums_over_all_windows(data: st.DataObject) -> None:
    draw = data.draw
    even = st.integers(1, 4).map(lambda half: 2 * half)
    rules: WindowRules = draw(st.sampled_from(["monai", "nnunet"]))
    window = Window(
        Vec3(draw(even), draw(even), draw(even)), draw(st.sampled_from([0.0, 0.3, 0.5])),
        draw(st.sampled_from(["gaussian", "constant"])),
        draw(st.sampled_from(["", "x", "zy", "zyx"])), rules,
    )  # fmt: skip
    net = network(window)
    x = volume(Vec3(*(draw(st.integers(1, 14)) for _ in "zyx")))
    expected, roi = blended(net, x), None
    if draw(st.booleans()):
        starts = [draw(st.integers(0, extent - 1)) for extent in x.shape[1:]]
        stops = [draw(st.integers(a + 1, e)) for a, e in zip(starts, x.shape[1:], strict=True)]
        roi = Box(Vec3(*starts), Vec3(*stops))
        expected = expected[:, *roi.slices]
    patch = window.step * Vec3(*(draw(st.integers(1, 3)) for _ in "zyx"))
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(output(net, x, patch, roi), expected, rtol=0, atol=3e-5 * scale)


@on_gpu
def test_the_bytes_do_not_depend_on_the_blocks() -> None:
    net, x = network(Window(Vec3(8, 8, 8), mirror="x")), volume(SIZE)
    whole = output(net, x, Vec3(24, 24, 28))
    for patch in (Vec3(4, 8, 4), Vec3(24, 24, 4)):
        np.testing.assert_array_equal(output(net, x, patch), whole)


@on_gpu
def test_a_head_labels_and_masks() -> None:
    window = Window(Vec3(16, 16, 16), 0.25)
    net = replace(network_from_text(PLAIN_UNET, "plain.yaml"), window=window)
    assert with_deferred_head(net).blended_features == 16
    x = volume(Vec3(30, 33, 41))[:1]
    patch = window.step * Vec3(2, 2, 1)
    values = output(net, x, patch)
    expected = blended(net, x)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    labels = output(net, x, patch, labels=True)
    second, first = np.sort(values, axis=0)[-2:]
    sure = first - second > 1e-5 * first.max()
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(labels[0][sure], values.argmax(axis=0)[sure])
    above = output(net, x, patch, threshold=0.25)
    sure = np.abs(values - 0.25) > 1e-5 * first.max()
    np.testing.assert_array_equal(above[sure], (values > 0.25)[sure])
    mask = np.zeros(x.shape[1:], np.uint8)
    mask[3:20, :9, 30] = 1
    masked = output(net, x, patch, labels=True, mask=mask)
    np.testing.assert_array_equal(masked, np.where(mask, labels, 0))


@on_gpu
def test_a_run_goes_on_and_is_verified(tmp_path: Path) -> None:
    net, x = network(Window(Vec3(8, 8, 8), mirror="x")), volume(SIZE)
    source, out = tmp_path / "in.npy", tmp_path / "out.zarr"
    np.save(source, x)
    plan = search(net, SIZE, **OPTIONS).fastest_for(Vec3(8, 8, 8))
    options: Any = {**OPTIONS, "random_seed": 7, "plan": plan}

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.infer(str(source), net, str(out), progress=stop, **options)
    assert api.infer(str(source), net, str(out), **options).finished_before > 0
    found = open_volume(str(out)).read(Box(Vec3(0, 0, 0), SIZE))
    np.testing.assert_array_equal(found, output(net, x, Vec3(8, 8, 8)))
    assert verify(out, voxels=40, seed=1).agrees


@on_gpu
def test_volume_after_volume_begins_anew() -> None:
    net = network(Window(Vec3(8, 8, 8)))
    inferer = Inferer(net, random_weights(net, 7), **OPTIONS)
    first, second = volume(SIZE), volume(SIZE, 1)
    for x in (first, second, first):
        np.testing.assert_allclose(inferer(x), blended(net, x), rtol=0, atol=1e-4)


# Nobody else may use the GPU meanwhile.
MEASURED = """
import sys
import numpy as np
from znni.core.shapes import Vec3
from znni.inference import api
from znni.inference.planning import search
from znni.machine.cuda import cupy
from znni.network.network_file import load_network

def free():
    cupy().cuda.Device().synchronize()
    return int(cupy().cuda.Device().mem_info[0])

options = {"device": "gpu", "costs": "built-in", "threads": 2}
net = load_network(sys.argv[1])
plan = search(net, (70, 90, 110), **options).fastest_for(Vec3.of(48))
cupy().zeros(1)  # which begins with the GPU
before, least = free(), []
x, out = np.zeros((1, 70, 90, 110), np.float32), np.zeros((40, 70, 90, 110), np.float32)
x[:, :, :, 5] = 1
api.infer(x, net, out, random_seed=7, plan=plan, progress=lambda *_: least.append(free()),
          **options)
print(before - min(least), plan.device_memory.total)
"""


@on_gpu
@pytest.mark.whole_gpu
def test_all_that_the_gpu_gives_was_promised(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(PLAIN_UNET + "window: {size: [32, 32, 32]}\n")
    command = (sys.executable, "-c", MEASURED, str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken, promised = map(int, done.stdout.split())
    assert promised / 4 < taken <= promised


@on_gpu
@pytest.mark.parametrize(
    "rule",
    [
        Labels(tuple(range(9))),
        Labels((3, 700, *range(7))),
        Labels(threshold=0.5),
        Labels((3, 700, *range(7)), 0.5, regions=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_head", [False, True])
def test_labels_are_those_of_the_host(rule: Labels, has_head: bool) -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(-3, 4, (4 if has_head else 9, 5, 21, 300)).astype(np.float32)
    values[:, 2] = 1  # all equal
    weight = generator.integers(-2, 3, (9, 4, 1, 1, 1)).astype(np.float32)
    head = ConvWeights(weight, np.arange(9, dtype=np.float32)) if has_head else None
    expected = Blended(values, head, None, 1).labels(rule)
    found = DeviceLabels(len(values), head)(cupy().asarray(values), rule).get()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@needs_compiler
@chips
def test_kernels_compile_without_spills(chip: Chip) -> None:
    sources = [(device_window_sums.source(), ())] + [
        (device_labels.source(), device_labels.options(dtype, has_head=has_head))
        for dtype in device_labels.TYPES
        for has_head in (False, True)
    ]
    for source, options in sources:
        for usage in resource_usage(source, chip.architecture, options).values():
            assert usage.spills == 0
