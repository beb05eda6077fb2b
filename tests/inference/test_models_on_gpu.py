"""Models of PyTorch on a GPU: in windows, in the class that was asked, compiled where it pays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import gpu, machine
from import_cases import torch_or_skip

import znni
from znni.core import user_cache, value_cache
from znni.core.errors import InvalidInput
from znni.core.option_types import Accuracy
from znni.core.plan_options import Choices
from znni.core.shapes import Box, Shape5, Vec3
from znni.inference import model_choice, model_compilation
from znni.inference.model_compilation import compile_if_it_pays
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.network import model_files, model_on_gpu
from znni.network.model_files import WHOLE, Measured, compile_model, compiled_folder, is_compiled
from znni.network.model_libraries import Refused
from znni.network.models import Execution, Model
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.primitives.other_library import on_gpu
from znni.primitives.other_library.on_gpu import PytorchOnGpu
from znni.volumes.locate import open_volume

torch = torch_or_skip()
from norm_over_maps import NormOverMaps  # noqa: E402 - it needs PyTorch

WINDOW = Vec3(16, 16, 24)
SIZE = Vec3(29, 31, 45)
SHAPE = Shape5(1, 2, *WINDOW)
COST = Measured(seconds=1e-3, memory=1 << 20, gpu_memory=3 << 20)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of each test's own."""
    folder = tmp_path / "cache"
    for module in (user_cache, value_cache, model_choice, model_files):
        monkeypatch.setattr(module, "user_cache", lambda: folder)
    for remembered in (model_files.measured, on_gpu._refusal, model_files.opened_on_gpu):
        remembered.cache_clear()
    return folder


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """A network that znni cannot express, exported for windows of ``WINDOW``."""
    torch.manual_seed(1)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(NormOverMaps().eval(), (torch.zeros(*SHAPE),)), path)
    return load_network(path)


def costs(patch: pytest.MonkeyPatch, **errors: float) -> None:
    """Let every window take one millisecond, with the errors of the numbers given."""

    def measured(_model: Model, _size: Vec3, on: Execution) -> Measured:
        if on.numbers not in errors:
            raise InvalidInput("net.pt2: PyTorch 9.9 computes on the CPU alone")
        seconds = COST.seconds / (1 + on.compiled)
        return replace(COST, seconds=seconds, error=errors[on.numbers])

    patch.setattr(on_gpu, "measured", measured)


@pytest.mark.slow
def test_numbers_count_if_the_whole_network_is_accurate_enough(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = network.models
    model = replace(model, window=WINDOW)
    costs(monkeypatch, float32=0.0, tf32=3e-3, float16=1e-3, bfloat16=9e-3)
    able = [it for it in on_gpu.primitives(gpu()) if it.out_shape(model, SHAPE)]
    assert [it.name for it in able] == [
        "gpu_pytorch_float32", "gpu_pytorch_float16", "gpu_pytorch_bfloat16",
    ]  # fmt: skip
    assert able[0].out_shape(model, SHAPE) == SHAPE._replace(f=3)
    assert able[0].out_shape(model, SHAPE._replace(n=2)) is None
    cost = able[0].cost(model, SHAPE)
    assert (cost.seconds, cost.memory.resident) == (COST.seconds, COST.gpu_memory)
    assert able[0].out_shape(replace(model, runtime="onnxruntime"), SHAPE) is None


@pytest.mark.slow
def test_a_pytorch_without_cuda_is_told_once(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (model,) = network.models
    model = replace(model, window=WINDOW)
    costs(monkeypatch)
    first = PytorchOnGpu(gpu(), "float32", compiled=False)
    for _ in range(3):
        assert first.out_shape(model, SHAPE) is None
    assert caplog.messages == ["no GPU computes net.pt2: PyTorch 9.9 computes on the CPU alone"]
    assert on_gpu.host_bytes([model], [first]) == 0
    costs(monkeypatch, float32=0.0)
    on_gpu._refusal.cache_clear()
    assert on_gpu.host_bytes([model], [first]) == COST.memory


@pytest.mark.slow
def test_a_compiled_form_that_fails_leaves_the_layers(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (model,) = network.models
    model = replace(model, window=WINDOW)
    costs(monkeypatch)
    primitive = PytorchOnGpu(gpu(), "float32", compiled=True)
    assert primitive.out_shape(model, SHAPE) is None
    assert not caplog.messages  # there is no compiled form to fail
    Compiling()(model, WINDOW, primitive.execution)
    assert primitive.out_shape(model, SHAPE) is None
    assert caplog.messages == [
        "net.pt2: PyTorch 9.9 computes on the CPU alone; this is its compiled form, so it is "
        "computed layer by layer"
    ]


@pytest.mark.slow
def test_a_process_without_a_gpu_says_why(network: Network) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch finds a GPU here")
    (model,) = network.models
    with pytest.raises(InvalidInput, match=r"net\.pt2: PyTorch .* computes on the CPU alone, bec"):
        model_files.measured(model, WINDOW, Execution(gpu="H200"))
    with pytest.raises(InvalidInput, match=r"net\.pt2: PyTorch .* computes on the CPU alone, bec"):
        compile_model(model, WINDOW, Execution(gpu="H200", compiled=True))
    assert not is_compiled(model, WINDOW, Execution(gpu="H200", compiled=True))


@pytest.mark.slow
def test_a_compiled_form_that_cannot_be_opened_leaves_the_layers(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (model,) = network.models

    def opening(_file: str, numbers: str, shape: Shape5, compiled: str) -> tuple[object, ...]:
        if compiled:
            raise Refused("PyTorch 9.9 cannot compile it: no g++")
        return numbers, shape

    monkeypatch.setattr(model_on_gpu, "open_on_gpu", opening)
    on = Execution(gpu="H200", numbers="tf32", compiled=True)
    assert model_files.opened_on_gpu(model, WINDOW, on) == ("tf32", SHAPE)
    assert caplog.messages == [
        f"{model.given}: PyTorch 9.9 cannot compile it: no g++; so it is computed layer by layer"
    ]


class Compiling:
    """Compiles nothing, but marks a compiled form as whole, or refuses."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.times = refused, 0

    def __call__(self, model: Model, size: Vec3, on: Execution) -> None:
        self.times += 1
        if self.refused:
            raise InvalidInput(self.refused)
        folder = compiled_folder(model, size, on)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WHOLE).touch()


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Compiling]:
    def take(refused: str = "") -> Compiling:
        taken = Compiling(refused)
        monkeypatch.setattr(model_compilation, "compile_model", taken)
        return taken

    return take


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has a GPU on which a window takes a millisecond."""
    here = replace(machine(), gpus=(gpu(),))
    monkeypatch.setattr("znni.inference.planning.machine_for", lambda *_: here)
    costs(monkeypatch, float32=0.0, float16=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_gpu")
def test_a_long_run_compiles_once(
    network: Network, compiling: Callable[..., Compiling], monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = Choices(device="gpu", costs="built-in")
    taken = compiling()
    compile_if_it_pays(network, SIZE, choices)
    assert taken.times == 0  # a second of work does not pay for a minute
    monkeypatch.setattr(model_compilation, "PAYS_SECONDS", 1e-3)
    compile_if_it_pays(network, SIZE, replace(choices, device="cpu"))
    assert taken.times == 0
    compile_if_it_pays(network, SIZE, choices)
    compile_if_it_pays(network, SIZE, choices)
    assert taken.times == 1
    plan = search(network, SIZE, device="gpu", costs="built-in").fastest(1)[0]
    assert [step.primitive for step in plan.steps] == ["gpu_pytorch_float32_compiled"]
    assert plan.gpu_memory is not None
    assert plan.gpu_memory.resident == COST.gpu_memory


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_gpu")
def test_a_compilation_that_fails_is_told_and_tried_again_with_another_compiler(
    network: Network, compiling: Callable[..., Compiling], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    taken = compiling("net.pt2: PyTorch 9.9 cannot compile it: no g++")
    monkeypatch.setattr(model_compilation, "PAYS_SECONDS", 1e-3)
    for _ in range(2):
        compile_if_it_pays(network, SIZE, Choices(device="gpu", costs="built-in"))
    assert taken.times == 1
    told = [it.message for it in caplog.records if it.levelno == logging.WARNING]
    assert told == 2 * [
        "net.pt2: PyTorch 9.9 cannot compile it: no g++; so it is computed layer by layer"
    ]
    monkeypatch.setattr(model_compilation, "which", lambda name: f"/new/{name}")
    compile_if_it_pays(network, SIZE, Choices(device="gpu", costs="built-in"))
    assert taken.times == 2  # a compiler that was installed may help


def volume() -> Any:
    return np.random.default_rng(0).standard_normal((2, *SIZE), np.float32)


def reference(network: Network) -> Any:
    """Return what the processors compute."""
    out = np.zeros((3, *SIZE), np.float32)
    znni.infer(volume(), network, out, device="cpu", costs="built-in")
    return out


@pytest.mark.gpu
@pytest.mark.parametrize(("accuracy", "most"), [("float32", 1e-5), ("tf32", 4e-3)])
def test_a_gpu_computes_windows(
    accuracy: Accuracy, most: float, network: Network, tmp_path: Path
) -> None:
    np.save(tmp_path / "in.npy", volume())
    out = tmp_path / "out.h5"
    report = znni.infer(tmp_path / "in.npy", network, out, device="gpu", accuracy=accuracy)
    (step,) = report.plan.steps
    assert str(step.primitive).startswith("gpu_pytorch_")
    wanted = reference(network)
    found = open_volume(out).read(Box(Vec3(0, 0, 0), SIZE))
    assert np.linalg.norm(found - wanted) <= most * np.linalg.norm(wanted)
    assert report.plan.gpu_memory is not None
    assert report.gpu_peak_memory <= report.plan.gpu_memory.total
    assert verify(out, seed=1).agrees


@pytest.mark.gpu
def test_a_compiled_model_gives_the_same(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_compilation, "PAYS_SECONDS", 1e-3)
    out = np.zeros((3, *SIZE), np.float32)
    report = znni.infer(volume(), network, out, device="gpu")
    (step,) = report.plan.steps
    assert step.primitive == "gpu_pytorch_float32_compiled"
    wanted = reference(network)
    assert np.linalg.norm(out - wanted) <= 1e-5 * np.linalg.norm(wanted)
