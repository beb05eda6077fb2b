"""Models in files of other libraries: computed by these in windows, unless znni is faster."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused, succeeds
from import_cases import torch_or_skip

import znni
from znni.core import user_cache, value_cache
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.core.value_cache import load_value, store_value
from znni.inference import model_choice
from znni.inference.model_choice import chosen
from znni.inference.plan_cache import fastest_cached_or_found
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network import model_files, model_process
from znni.network.geometry import with_window
from znni.network.model_files import Measured, measured
from znni.network.models import Execution
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network, network_from_text
from znni.network.window import Window
from znni.plans.plan import Plan
from znni.primitives.other_library.primitive import OtherLibrary
from znni.volumes.locate import open_volume

torch = torch_or_skip()
nn = torch.nn
from norm_networks import blended  # noqa: E402 - they need PyTorch
from norm_over_maps import NormOverMaps  # noqa: E402

WINDOW = Vec3(8, 8, 12)
SIZE = Vec3(13, 15, 21)
# The memory is fixed: what is free differs from one call to the next, and plans name it.
OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1, "ram": "4GiB"}


class Two(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def exported(folder: Path, module: Any, inputs: int = 1) -> Path:
    """Return the file of a module, exported for windows of ``WINDOW``."""
    path, given = folder / "net.pt2", (torch.zeros(1, 2, *WINDOW),) * inputs
    torch.export.save(torch.export.export(module.eval(), given), path)
    return path


def caches_in(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a folder the user's cache of models."""
    for module in (user_cache, value_cache, model_choice):
        patch.setattr(module, "user_cache", lambda: folder)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's cache of these tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        caches_in(folder, patch)
        yield folder


def here(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Return what the process that opens files would answer, from this process.

    Importing PyTorch again takes seconds for each file.
    """
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = model_process.main(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def files_are_opened_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are opened in this process, unless the test is about the other one."""
    if "own_process" not in request.fixturenames:
        monkeypatch.setattr(model_files, "_asked_of_child", here)


@pytest.fixture
def own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Models are opened in a process of their own, as users have it. Return its empty cache."""
    caches_in(tmp_path, monkeypatch)
    for remembered in (model_files._described, measured):
        remembered.cache_clear()
    yield tmp_path
    for remembered in (model_files._described, measured):
        remembered.cache_clear()


@pytest.fixture(scope="module")
def normed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A module that znni cannot express, and its file."""
    torch.manual_seed(1)
    module = NormOverMaps()
    return module, exported(tmp_path_factory.mktemp("normed"), module)


def volume() -> Any:
    return np.random.default_rng(0).standard_normal((2, *SIZE), np.float32)


def test_a_model_in_windows_gives_its_library_s_numbers(
    normed: tuple[Any, Path], tmp_path: Path
) -> None:
    module, file = normed
    network, x = load_network(file), volume()
    assert network.window == Window(WINDOW)  # the only one that the file allows
    np.save(tmp_path / "in.npy", x)
    out = tmp_path / "out.h5"
    roi = np.s_[2:11, :, 3:]
    report = znni.infer(tmp_path / "in.npy", network, out, roi=roi, **OPTIONS)
    wanted = blended(module, x, Window(WINDOW))[:, *roi]
    found = open_volume(out).read(Box(Vec3(0, 0, 0), Vec3(*wanted.shape[1:])))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert report.time.around.importing > 0  # the choice, which was made before
    assert [step.primitive for step in report.plan.steps] == ["pytorch"]
    assert Plan.from_json(report.plan.to_json()) == report.plan
    checked = verify(out, seed=1)
    assert checked.agrees
    assert "by pytorch itself, in float32" in str(checked)
    np.save(tmp_path / "in.npy", x * np.float32(1.01))
    with pytest.raises(InvalidInput, match="was computed from another input"):
        verify(out, seed=1)


def test_a_stopped_run_goes_on_within_a_mask(normed: tuple[Any, Path], tmp_path: Path) -> None:
    network, x, out = load_network(normed[1]), volume(), tmp_path / "out.zarr"
    np.save(tmp_path / "in.npy", x)
    mask = np.zeros(SIZE, np.uint8)
    mask[:, :, 12:] = 1
    plan = search(network, SIZE, **OPTIONS).fastest_for(Vec3(4, 4, 6))
    options: Any = {**OPTIONS, "plan": plan, "mask": mask}

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        znni.infer(tmp_path / "in.npy", network, out, progress=stop, **options)
    report = znni.infer(tmp_path / "in.npy", network, out, **options)
    assert report.finished_before > 0
    assert report.skipped.outside_mask > 0
    wanted = blended(normed[0], x, Window(WINDOW)) * mask
    found = open_volume(out).read(Box(Vec3(0, 0, 0), SIZE))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_the_plan_promises_what_was_measured(normed: tuple[Any, Path], own_process: Path) -> None:
    network = load_network(normed[1])
    (model,) = network.models
    plan = search(network, SIZE, **OPTIONS).fastest()[0]
    window = measured(model, WINDOW, Execution(1))
    assert plan.memory.resident == window.memory > 100 << 20  # PyTorch alone takes that
    assert plan.steps[0].seconds >= window.seconds
    answers = {file: load_value(file, dict) or {} for file in (own_process / "models").iterdir()}
    (known,) = (file for file, answer in answers.items() if "windows" in answer)
    said = answers[known]
    said["windows"]["float32"]["seconds"] = 7.0
    store_value(known, said)
    measured.cache_clear()
    assert measured(model, WINDOW, Execution(1)).seconds == 7.0  # measured once


def test_a_cached_plan_that_promises_too_little_memory_is_made_again(
    normed: tuple[Any, Path], own_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZNNI_PLANS", str(own_process / "plans"))
    monkeypatch.setattr(model_files, "_asked_of_child", here)
    network = load_network(normed[1])
    first = fastest_cached_or_found(search(network, SIZE, **OPTIONS))[0]
    assert fastest_cached_or_found(search(network, SIZE, **OPTIONS)) == (first, True)
    (model,) = network.models
    taken = measured(model, WINDOW, Execution(1))
    more = replace(taken, memory=taken.memory + 4096)  # the cache lost the measurement
    monkeypatch.setattr(f"{OtherLibrary.__module__}.measured", lambda *_: more)
    again, cached = fastest_cached_or_found(search(network, SIZE, **OPTIONS))
    assert not cached
    assert again.memory.resident == first.memory.resident + 4096


def test_a_model_is_described(normed: tuple[Any, Path]) -> None:
    first, model, *_ = succeeds("info", str(normed[1])).splitlines()
    assert first.startswith("net: 1 layer")
    assert model.endswith("net.pt2, computed by pytorch, 2 -> 3 maps")
    missing = refused("info", "missing.onnx")
    assert missing.startswith("missing.onnx: no such model file; check the path")


@pytest.mark.slow
def test_a_model_that_needs_no_windows_is_described_as_it_runs(tmp_path: Path) -> None:
    path = exported(tmp_path, nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.ReLU()))
    why, layers, *_ = succeeds("info", str(path)).splitlines()
    assert why == "znni computes net.pt2 over the whole volume: no layer needs windows"
    assert layers.startswith("net: 1 layer, 165 parameters, 2 -> 3 maps, computed over the whole")


def test_a_network_file_that_names_a_model(normed: tuple[Any, Path]) -> None:
    text = (
        "name: cells\nmodel: net.pt2\ninput: {scale: 0.5}\n"
        "window: {size: [8, 8, 12], overlap: 0.25, blend: constant}\n"
        "labels: {background: 0, cell: 1, wall: 4}\n"
    )
    network = network_from_text(text, normed[1].parent / "cells.yaml")
    x, out = volume(), np.zeros((1, *SIZE), np.uint8)
    znni.infer(x, network, out, labels=True, **OPTIONS)
    wanted = blended(normed[0], x / 2, Window(WINDOW, 0.25, "constant")).argmax(axis=0)
    np.testing.assert_array_equal(out[0], np.array([0, 1, 4])[wanted])
    assert network_from_text(network_text(network), "again.yaml") == network
    changed = network_text(network).replace(network.models[0].sha256, "0" * 64)
    with pytest.raises(InvalidInput, match="has changed since"):
        network_from_text(changed, "again.yaml")


@pytest.mark.slow
def test_onnx_runtime_computes_windows_of_any_size(
    normed: tuple[Any, Path], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed (znni[onnx])")
    file, axes = tmp_path / "net.onnx", {2: "z", 3: "y", 4: "x"}
    with warnings.catch_warnings(action="ignore"):  # of the exporter
        torch.onnx.export(
            normed[0].eval(), (torch.zeros(1, 2, *WINDOW),), file, dynamo=False,
            input_names=["in"], output_names=["out"], dynamic_axes={"in": axes, "out": axes},
        )  # fmt: skip
    network = load_network(file)
    with pytest.raises(InvalidInput, match="give the extents that it was trained on"):
        search(network, SIZE, **OPTIONS)
    window = Window(Vec3(6, 10, 7))
    out = np.zeros((3, *SIZE), np.float32)
    znni.infer(volume(), with_window(network, window), out, **OPTIONS)
    wanted = blended(normed[0], volume(), window)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1e-9, 1e3])
def test_the_faster_one_computes_and_goes_on(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches_in(tmp_path, monkeypatch)
    network = load_network(normed_by_windows(tmp_path))
    name = "other_library.primitive.measured"
    for time in (seconds, 1 / seconds):  # the second time is too late: the choice is kept
        made = Measured(time, 1 << 20)
        monkeypatch.setattr(f"znni.primitives.{name}", lambda *_, made=made: made)
        choices = znni.core.plan_options.Choices(**OPTIONS)
        found = chosen(network, SIZE, choices)
        assert bool(found.network.models) == (seconds < 1)
        assert "by znni and" in found.why
    assert found.network.window == network.window
    out = np.zeros((3, *SIZE), np.float32)
    report = znni.infer(volume(), network, out, **OPTIONS)
    assert (report.plan.steps[0].primitive == "pytorch") == (seconds < 1)
    assert np.ptp(out) > 0


@pytest.mark.slow
def test_the_first_use_of_a_model_says_what_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caches_in(tmp_path, monkeypatch)
    monkeypatch.setattr("znni.core.logged.LONG_SECONDS", 0.01)
    caplog.set_level(logging.INFO, logger="znni.waits")
    path = normed_by_windows(tmp_path)
    chosen(load_network(path), SIZE, znni.core.plan_options.Choices(**OPTIONS))
    assert caplog.messages[0] == f"opening {path}, once, 0 s so far"
    assert f"importing {path}, once" in caplog.messages
    assert any(said.startswith(f"measuring {path}, once, ") for said in caplog.messages)


@pytest.mark.slow
def test_imports_that_nobody_uses_are_deleted(own_process: Path) -> None:
    old = own_process / "imports" / "old"
    old.mkdir(parents=True)
    for name in ("network.yaml", "network.safetensors"):
        (old / name).touch()
        os.utime(old / name, (0, 0))
    network = load_network(exported(own_process, nn.Conv3d(2, 3, 3, padding=1)))
    user_cache.delete_unused_once.cache_clear()
    assert not chosen(network, SIZE, znni.core.plan_options.Choices(**OPTIONS)).network.models
    (made,) = (own_process / "imports").iterdir()
    assert sorted(path.name for path in made.iterdir()) == ["network.safetensors", "network.yaml"]


@pytest.mark.slow
def test_a_network_that_needs_no_windows_has_none_unasked(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 3, 3, padding=1)
    ).eval()
    path = exported(tmp_path, module)
    with torch.no_grad():
        whole = module(torch.from_numpy(volume())[None])[0].numpy()
    out = np.zeros((3, *SIZE), np.float32)
    report = znni.infer(volume(), path, out, **OPTIONS)
    assert report.plan.network.window is None
    np.testing.assert_allclose(out, whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    inferer = znni.Inferer(path, **OPTIONS)
    np.testing.assert_allclose(inferer(volume()), whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    again = znni.infer(volume(), path, out, plan=report.plan, **OPTIONS)
    assert again.plan.segments == report.plan.segments
    asked = with_window(load_network(path), Window(WINDOW))
    assert znni.infer(volume(), asked, out, **OPTIONS).plan.network.window is not None
    assert np.abs(out - whole).max() > 1e-3 * np.abs(whole).max()  # windows see zeros around them


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    caches_in(tmp_path / "file", monkeypatch)
    for remembered in (model_files._described, measured):
        remembered.cache_clear()
    network = load_network(exported(tmp_path, nn.Conv3d(2, 3, 3, padding=1)))
    found = chosen(network, SIZE, znni.core.plan_options.Choices(**OPTIONS))
    assert found.network.models  # the library computes: what is imported could not be kept
    assert "what znni imports cannot be kept in" in found.why
    out = np.zeros((3, *SIZE), np.float32)
    znni.infer(volume(), network, out, **OPTIONS)
    assert np.ptp(out) > 0
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert told
    assert len(told) == len(set(told))
    assert all("cannot be written: Not a directory; compiled code" in line for line in told)


def normed_by_windows(folder: Path) -> Path:
    """Return the file of a network that znni can express."""
    module = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.InstanceNorm3d(4))
    return exported(folder, nn.Sequential(module, nn.Conv3d(4, 3, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("expressed", [True, False])
def test_parts_of_a_model_are_computed_alike(
    expressed: bool, normed: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = load_network(normed_by_windows(tmp_path) if expressed else normed[1])
    np.save(tmp_path / "in.npy", volume())
    out, options = tmp_path / "out.zarr", {**OPTIONS, "ram": "600MiB"}
    for part, seconds in (("0/2", 1e-9), ("1/2", 1e3)):  # by time, they would choose differently
        made = Measured(seconds, 1 << 20)
        name = "other_library.primitive.measured"
        monkeypatch.setattr(f"znni.primitives.{name}", lambda *_, made=made: made)
        report = znni.infer(tmp_path / "in.npy", network, out, part=part, **options)
        assert (report.plan.steps[0].primitive != "pytorch") == expressed
    znni.finish(out)
    checked = verify(out, seed=1)
    assert checked.agrees
    assert checked.how == ("in float64" if expressed else "by pytorch itself, in float32")


@pytest.mark.slow
def test_numbers_of_a_library_are_verified_by_znni_in_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, out = load_network(normed_by_windows(tmp_path)), tmp_path / "out.h5"
    np.save(tmp_path / "in.npy", volume())
    plan = search(network, SIZE, **OPTIONS).fastest()[0]
    znni.infer(tmp_path / "in.npy", network, out, plan=plan, **OPTIONS)
    checked = verify(out, seed=1)
    assert (checked.agrees, checked.how) == (True, "in float64")

    def another(*_: Any) -> Any:
        return lambda x: np.full((1, 3, *x.shape[2:]), 0.01, np.float32)

    monkeypatch.setattr("znni.primitives.other_library.primitive.opened", another)
    znni.infer(tmp_path / "in.npy", network, out, plan=plan, overwrite=True, **OPTIONS)
    assert verify(out, seed=1).wrong


def test_a_model_that_changes_while_a_run_begins(tmp_path: Path) -> None:
    file = exported(tmp_path, nn.Conv3d(2, 3, 3, padding=1))
    (model,) = load_network(file).models
    file.write_bytes(file.read_bytes() + b"0")
    model_files.opened.cache_clear()
    with pytest.raises(InvalidInput, match="has changed since; give the file that was used"):
        model_files.opened(model, 1)


@pytest.mark.parametrize(
    ("module", "inputs", "said"),
    [
        (nn.Conv3d(2, 3, 3, padding=1, stride=2), 1, "and (1, 3, 8, 8, 12) is needed to blend"),
        (Two(), 2, "has inputs ['x', 'y']; export a network with one"),
    ],
)
def test_a_model_that_does_not_fit_windows(
    module: Any, inputs: int, said: str, tmp_path: Path
) -> None:
    file = exported(tmp_path, module, inputs=inputs)
    with pytest.raises(InvalidInput) as refused:
        search(load_network(file), SIZE, **OPTIONS).fastest()
    assert said in str(refused.value)


def test_a_damaged_onnx_file_is_named_once(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    file = tmp_path / "damaged.onnx"
    file.write_bytes(b"no model")
    with pytest.raises(InvalidInput, match=r"onnxruntime .* cannot open it: ") as refused:
        load_network(file)
    assert str(refused.value).count(str(file)) == 1
    assert str(refused.value).count(file.name) == 1


def test_a_model_is_named_as_the_user_gave_it(
    normed: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    given = Path("models/net.pt2")
    given.write_bytes(normed[1].read_bytes())
    network = load_network(given)
    (model,) = network.models
    assert model.file == str(tmp_path / given)  # other processes find it
    with pytest.raises(InvalidInput, match=r"^models/net\.pt2 takes windows of"):
        with_window(network, replace(network.window, size=Vec3(8, 8, 8)))
    given.write_bytes(b"no model")
    with pytest.raises(InvalidInput, match=r"^models/net\.pt2: has changed since"):
        model_files.opened(model, 1)
    with pytest.raises(InvalidInput, match=r"^models/net\.pt2: PyTorch .* cannot open it"):
        load_network(given)
    given.unlink()
    with pytest.raises(InvalidInput, match=r"^models/net\.pt2: no such model file"):
        model_files.opened(model, 1)


def test_mistakes_in_naming_a_model(
    normed: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = load_network(normed[1])
    with pytest.raises(InvalidInput, match=r"takes windows of 8x8x12 only.*import it with znni"):
        with_window(network, replace(network.window, size=Vec3(8, 8, 8)))
    for text, said in (
        ("name: a\nmodel: none.onnx\n", "none.onnx: no such model file; check the path"),
        ("name: a\nmodel: net.h5\n", "is no model; give .onnx or .pt2"),
        ("name: a\n", "a network has layers: or model:; give one of them"),
    ):
        with pytest.raises(InvalidInput, match=said):
            network_from_text(text, tmp_path / "net.yaml")
    broken = tmp_path / "broken.pt2"
    broken.write_bytes(b"no model")
    by_itself = rf"^{re.escape(str(broken))}: PyTorch .* cannot open it: .*; export"
    with pytest.raises(InvalidInput, match=by_itself):
        load_network(broken)
    by_network_file = r"net\.yaml, line 2: .*broken\.pt2: PyTorch .* cannot open it"
    with pytest.raises(InvalidInput, match=by_network_file):
        network_from_text("name: a\nmodel: broken.pt2\n", tmp_path / "net.yaml")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")

    def missing(package: str) -> str:
        raise model_files.PackageNotFoundError(package)

    monkeypatch.setattr(model_files, "version", missing)
    with pytest.raises(
        InvalidInput, match="needs onnxruntime, which is not installed: pip install"
    ):
        load_network(broken)
