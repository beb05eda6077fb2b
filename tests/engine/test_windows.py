"""Networks in windows: blocks of any size, region and border give the framework's sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from import_cases import numbers, onnx_or_skip, relative, torch_or_skip
from window_networks import NET, blended, network, volume

import znni
from bench.library_networks import export
from znni.core.errors import InvalidInput
from znni.core.option_types import Border
from znni.core.shapes import Box, Vec3
from znni.engine import windows
from znni.engine.backends.host.window_sums import WindowSums
from znni.engine.block import alone
from znni.engine.windows import BoxSums
from znni.inference import api
from znni.inference.inferer import Inferer
from znni.inference.monai import SlidingWindowInferer
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network.geometry import input_box, over, with_window
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network, network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.volumes.locate import open_volume

OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.one_of(
        st.just(network_from_text(NET, "norms.yaml")),
        graphs(depth=1, most_maps=4, strides=(1, 2), whole=True),
    ),
    st.data(),
)
def test_blocks_give_the_sums_over_all_windows(given_net: Network, data: st.DataObject) -> None:
    draw = data.draw
    halves = st.integers(1, 4).map(lambda half: 2 * half)
    window = Window(
        Vec3(draw(halves), draw(halves), draw(halves)),
        draw(st.sampled_from([0.0, 0.3, 0.5])),
        draw(st.sampled_from(["gaussian", "constant"])),
        draw(st.sampled_from(["", "", "x", "zy"])),
        draw(st.sampled_from(["monai", "nnunet"])),
    )
    net = with_window(given_net, window)
    # At most 5 windows along an axis: the reference computes each by itself.
    size = Vec3(*(draw(st.integers(1, min(14, 3 * extent))) for extent in window.size))
    border = draw(st.sampled_from(["valid", "same"]))
    pad = draw(st.sampled_from(["reflect", "edge"])) if border == "same" else None
    x = volume(size, maps=net.in_features)
    expected = blended(net, x, border, pad)
    roi = None
    if draw(st.booleans()):
        starts = [draw(st.integers(0, extent - 1)) for extent in size]
        stops = [draw(st.integers(a + 1, e)) for a, e in zip(starts, size, strict=True)]
        roi = Box(Vec3(*starts), Vec3(*stops))
        expected = expected[:, *roi.slices]
    patch = window.step * Vec3(*(draw(st.integers(1, 3)) for _ in "zyx"))
    found = search(net, size, border=border, roi=roi, **OPTIONS).fastest_for(patch)
    assert found is not None
    out = np.full(expected.shape, np.nan, np.float32)
    api.infer(x, net, out, weights=random_weights(net, 7), plan=found, border=border, pad=pad,
              roi=roi, **OPTIONS)  # fmt: skip
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(out, expected, rtol=0, atol=3e-5 * scale)


def test_mirroring_beyond_the_edges_needs_a_border() -> None:
    net, x = network(Window(Vec3(8, 8, 8))), volume(Vec3(5, 6, 7))
    out = np.zeros((3, 5, 6, 7), np.float32)
    with pytest.raises(InvalidInput, match="windows see zeros beyond the edges"):
        api.infer(x, net, out, random_seed=0, pad="reflect", **OPTIONS)


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_blocks() -> None:
    net = network(Window(Vec3(8, 8, 8)))
    x, weights = volume(Vec3(20, 23, 25)), random_weights(net, 7)
    outputs = []
    for patch in (Vec3(4, 8, 4), Vec3(24, 24, 28)):
        plan = search(net, (20, 23, 25), **OPTIONS).fastest_for(patch)
        out = np.zeros((3, 20, 23, 25), np.float32)
        api.infer(x, net, out, weights=weights, plan=plan, **OPTIONS)
        outputs.append(out)
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_mask_costs_no_windows_in_blocks_that_are_wanted(
    left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x, size = network(Window(Vec3(8, 8, 8))), volume(Vec3(8, 8, 40)), Vec3(8, 8, 40)
    plan = search(net, size, **OPTIONS).fastest_for(Vec3(8, 8, 8))
    mask = np.ones(size, np.uint8)
    mask[0, 0, 17 : 17 + left_out] = 0  # in the third of five blocks
    computed, run = [], windows.WindowInputs.__call__

    def counted(inputs: Any, *given: Any) -> Any:
        computed.append(given)
        return run(inputs, *given)

    monkeypatch.setattr(windows.WindowInputs, "__call__", counted)
    outputs, runs = [], []
    for masked in (None, mask):
        out = np.zeros((3, *size), np.float32)
        computed.clear()
        api.infer(x, net, out, random_seed=0, plan=plan, mask=masked, **OPTIONS)
        outputs.append(out)
        runs.append(len(computed))
    np.testing.assert_array_equal(outputs[0] * mask, outputs[1])
    again = 1 if left_out else 0  # the fourth block computes the window that the third begins
    assert runs == [9, 9 + again]


@pytest.mark.parametrize("mirror", ["", "zx"])
def test_groups_of_windows_do_not_depend_on_where_a_run_began(mirror: str) -> None:
    size, patch = Vec3(8, 20, 24), Vec3(4, 12, 8)
    window = Window(Vec3(4, 6, 8), 0.5, mirror=mirror, volume=size, together=3)
    net, x = over(network(window), window.size), volume(size)
    seen = input_box(net, patch).size
    blocks = [Box(Vec3(2, 3, at), Vec3(6, 15, at + 8)) for at in (0, 8)]
    wanted = np.zeros(blocks[1].size, np.bool_)
    wanted[0, 0, -1] = True

    def groups_of(read: list[tuple[Box, Any]]) -> list[tuple[set[bytes], Any]]:
        """The inputs that blocks compute one after the other, and their means."""
        blended, found = windows.BlendedWindows(net, patch), []
        cut = windows.WindowInputs(net, patch)
        for written, mask in read:
            inputs = set()

            def compute(block: Any, group: Any, inputs: set[bytes] = inputs) -> Any:
                given = cut(block, group)
                assert given.values.shape == (3, 2, *seen)
                inputs.add(given.values.tobytes())
                values = given.values[:, :, 1:-1, 1:-1, 1:-1]
                return np.concatenate([values, values[:, :1]], axis=1)

            def begin(box: Box) -> BoxSums:
                return WindowSums(
                    window, box, np.empty((3, *box.size), np.float32), window.importance(), 1
                )

            around = window.around(written)
            block = alone(x[:, *around.slices], around.start)
            block = block._replace(written=written, wanted=mask)
            found.append((inputs, blended(block, compute, begin).copy()))
        return found

    (first, _), (second, mean) = groups_of([(block, None) for block in blocks])
    ((by_itself, same),) = groups_of([(blocks[1], None)])
    ((masked, part),) = groups_of([(blocks[1], wanted)])
    assert second < by_itself <= first | second
    assert set[bytes]() < masked < by_itself
    assert len(by_itself) == sum(1 for _ in window.groups(blocks[1]))
    np.testing.assert_array_equal(same, mean)
    np.testing.assert_array_equal(part[:, wanted], mean[:, wanted])


def test_memory_bounds_the_blocks() -> None:
    net = network(Window(Vec3(16, 16, 16)))
    plans = [search(net, (120, 120, 120), ram=ram, **OPTIONS).fastest()[0]
             for ram in ("530MiB", "1GiB")]  # fmt: skip
    assert plans[0].patch.volume < plans[1].patch.volume
    assert plans[1].seconds < plans[0].seconds
    assert all(
        plan.memory.total <= ram * 2**20 for plan, ram in zip(plans, (530, 1024), strict=True)
    )


def test_a_network_with_norms_needs_windows() -> None:
    net = network_from_text(NET, "norms.yaml")
    with pytest.raises(InvalidInput, match="layer skip depends on all voxels of a window; give"):
        search(net, (20, 20, 20), **OPTIONS)


@pytest.mark.slow
def test_a_run_goes_on_is_verified_and_lies_are_found(tmp_path: Path) -> None:
    net = network(Window(Vec3(8, 8, 8), mirror="x"))
    net = replace(net, scaling=InputScaling())
    source, out = tmp_path / "in.npy", tmp_path / "out.zarr"
    x = volume(Vec3(20, 23, 25))
    np.save(source, x)
    mask = np.zeros((20, 23, 25), np.uint8)
    mask[:, :, 8:] = 1
    np.save(tmp_path / "mask.npy", mask)
    plan = search(net, (20, 23, 25), **OPTIONS).fastest_for(Vec3(8, 8, 8))
    options: Any = {**OPTIONS, "random_seed": 7, "mask": tmp_path / "mask.npy", "plan": plan}

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.infer(str(source), net, str(out), progress=stop, **options)
    report = api.infer(str(source), net, str(out), **options)
    assert report.finished_before > 0
    assert report.skipped.outside_mask > 0
    expected = blended(net, x)
    expected[..., :8] = 0
    found = open_volume(str(out)).read(Box(Vec3(0, 0, 0), Vec3(20, 23, 25)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max())
    assert verify(out, voxels=40, seed=1).agrees
    np.save(source, x + np.float32(1e-3) * (np.arange(25) == 12))
    with pytest.raises(InvalidInput):
        verify(out, voxels=40, seed=1)


def test_an_unfinished_output_of_other_windows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr")
    monkeypatch.setattr(
        "znni.volumes.partial_output.HELD_BYTES", 0
    )  # as larger outputs are written
    out, x = str(tmp_path / "out.zarr"), volume(Vec3(20, 23, 25))

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.infer(x, network(Window(Vec3(8, 8, 8))), out, random_seed=7, progress=stop, **OPTIONS)
    with pytest.raises(InvalidInput, match="its windows"):
        api.infer(x, network(Window(Vec3(8, 8, 8), 0.25)), out, random_seed=7, **OPTIONS)


def test_an_array_in_memory() -> None:
    net = network(Window(Vec3(8, 8, 8)))
    x = volume(Vec3(12, 13, 14))
    found = Inferer(net, random_weights(net, 7), **OPTIONS)(x)
    np.testing.assert_allclose(found, blended(net, x), rtol=0, atol=1e-4)


def _unet(nets: Any) -> Any:
    return nets.UNet(3, 2, 3, (4, 8), (2,), num_res_units=1, norm="INSTANCE")


def _mednext(nets: Any) -> Any:
    import norm_networks

    module = nets.MedNeXt(
        3, 8, 2, 3, kernel_size=3, blocks_down=(1,), blocks_bottleneck=1, blocks_up=(1,)
    )  # fmt: skip
    return norm_networks.varied(module)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("make", [_unet, _mednext])
@pytest.mark.parametrize(("overlap", "mode"), [(0.25, "constant"), (0.5, "gaussian")])
def test_windows_are_those_of_monai(overlap: float, mode: Any, make: Any, device: Any) -> None:
    torch = pytest.importorskip("torch")
    inferers = pytest.importorskip("monai.inferers")
    torch.manual_seed(5)
    model = make(pytest.importorskip("monai.networks.nets")).eval()
    images = torch.rand(2, 2, 15, 20, 23)
    size = (16, 16, 8)
    ours = SlidingWindowInferer(
        size, overlap=overlap, mode=mode, sw_batch_size=3, costs="built-in", device=device
    )
    found = ours(images, model)
    theirs = inferers.SlidingWindowInferer(size, 1, overlap=overlap, mode=mode)
    with torch.no_grad():
        wanted = theirs(images.double(), model.double())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_imported_response_norm_gives_the_mean_of_pytorch_s_windows(
    ending: str, tmp_path: Path
) -> None:
    torch_or_skip()
    if ending == ".onnx":
        onnx_or_skip()
    import norm_networks

    module, window = norm_networks.varied(norm_networks.mednext()), Window(Vec3(8, 12, 10))
    export(module, window.size, tmp_path / f"net{ending}")
    out = tmp_path / "made.yaml"
    znni.import_network(tmp_path / f"net{ending}", out)
    net, x = with_window(load_network(out), window), numbers(1, 13, 20, 17)
    assert "response_norm" in network_text(net)
    found = Inferer(net, **OPTIONS)(x)
    assert relative(found, norm_networks.blended(module, x, window)) < 1e-5


def test_windows_of_unequal_extents_over_a_cube_are_planned() -> None:
    net = network(Window(Vec3(16, 16, 8)))
    x = volume(Vec3(6, 6, 6))
    found = Inferer(net, random_weights(net, 7), **OPTIONS)(x)
    np.testing.assert_allclose(found, blended(net, x), rtol=0, atol=1e-4)


def test_strides_may_leave_out_the_last_voxels_of_a_window() -> None:
    text = """\
name: strided
in_features: 2
layers:
  - conv: {features: 4, kernel: 1, stride: 2}
  - instance_norm: {}
  - upsample: {factor: 2}
  - conv: {features: 2, kernel: 1}
"""
    net = with_window(network_from_text(text, "strided.yaml"), Window(Vec3(8, 12, 16)))
    x = volume(Vec3(12, 13, 20))
    found = Inferer(net, random_weights(net, 7), **OPTIONS)(x)
    np.testing.assert_allclose(found, blended(net, x), rtol=0, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_verify_computes_voxels_within_a_small_mask(seed: int, tmp_path: Path) -> None:
    net = network(Window(Vec3(8, 8, 8)))
    mask = np.zeros((20, 23, 25), np.uint8)
    mask[-2:, -2:, -2:] = 1
    np.save(tmp_path / "in.npy", volume(Vec3(20, 23, 25)))
    np.save(tmp_path / "mask.npy", mask)
    plan = search(net, (20, 23, 25), **OPTIONS).fastest_for(Vec3(4, 4, 4))
    options: Any = {**OPTIONS, "random_seed": 7, "mask": tmp_path / "mask.npy", "plan": plan}
    out = tmp_path / "out.h5"
    api.infer(str(tmp_path / "in.npy"), net, str(out), **options)
    found = verify(out, voxels=8, seed=seed)
    assert found.agrees
    assert found.unneeded < found.voxels


def test_a_plan_for_other_windows_says_so() -> None:
    net = network(Window(Vec3(8, 8, 8)))
    plan = search(net, (20, 20, 20), **OPTIONS).fastest_for(Vec3(8, 8, 8))
    other = network(Window(Vec3(8, 8, 8), 0.25))
    for wanted, size, said in [
        (net, Vec3(24, 24, 24), "a volume of 20x20x20, not 24x24x24"),
        (other, Vec3(20, 20, 20), "that overlap by 0.5, .* not computed in .* overlap by 0.25"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            Inferer(wanted, random_weights(wanted, 7), plan=plan, **OPTIONS)(volume(size))


@pytest.mark.parametrize("border", ["valid", "same"])
def test_windows_see_zeros_beyond_the_volume_whatever_the_border(border: Border) -> None:
    net = network(Window(Vec3(8, 16, 12)))
    x, weights = volume(Vec3(5, 9, 20)), random_weights(net, 7)
    found = Inferer(net, weights, border=border, **OPTIONS)(x)
    np.testing.assert_array_equal(
        found, Inferer(net, weights, border="same", pad="constant", **OPTIONS)(x)
    )
    mirrored = Inferer(net, weights, border="same", pad="reflect", **OPTIONS)(x)
    assert np.abs(mirrored - found).max() > 1e-3
