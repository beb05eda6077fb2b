"""PyTorch modules, exported programs and pickles: which are accepted, and which are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import numbers, pooled, read_back, refusal, relative, sequential, torch_or_skip

import znni
from znni.core.errors import RunFailed
from znni.importing.parity import Parity

torch = torch_or_skip()
nn = torch.nn

SIZE = (7, 13, 15)  # not that of one output voxel


# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")


def exported(module: Any, maps: int = 1, size: tuple[int, ...] = SIZE, **options: Any) -> Any:
    return torch.export.export(module, (torch.zeros(1, maps, *size),), **options)


def program_file(path: Path, module: Any, maps: int = 1, **options: Any) -> Path:
    torch.export.save(exported(module, maps, **options), path)
    return path


def as_torch_computes(module: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return np.asarray(module.double().eval()(torch.from_numpy(x).double()[None])[0])


def check(found: Any, module: Any, out: Path) -> None:
    """Check that network file and module compute the same, and that the import compared them."""
    x = numbers(2, *SIZE)
    assert relative(pooled(read_back(out), x), as_torch_computes(module, x)) < 1e-5
    assert isinstance(found.parity, Parity)
    assert found.parity.runtime == "PyTorch"
    assert found.parity.error < 1e-5


def test_a_module_as_a_network_file(tmp_path: Path) -> None:
    module = sequential().eval()
    out = tmp_path / "net.yaml"
    found = znni.import_network(module, out)
    assert [line.partition(": ")[0] for line in str(found).splitlines()] == [
        str(out),
        str(tmp_path / "net.safetensors"),
        "compared with PyTorch on random input of 5x14x15",
    ]
    assert "# 0 (Conv3d), 1 (BatchNorm3d), 2 (ReLU)" in out.read_text()
    assert "# 5.0 (Conv3d), 5.2 (LeakyReLU)" in out.read_text()
    check(found, module, out)


def test_dense_output_of_real_primitives_is_what_dilation_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    module = nn.Sequential(nn.Conv3d(1, 3, (1, 2, 3)), nn.MaxPool3d(2), nn.Conv3d(3, 2, 2))
    dilated = nn.Sequential(module[0], nn.MaxPool3d(2, stride=1), nn.Conv3d(3, 2, 2, dilation=2))
    dilated[2].load_state_dict(module[2].state_dict())
    found = znni.import_network(module, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    x = numbers(1, 6, 9, 11)
    dense = znni.Inferer(tmp_path / "net.yaml", threads=1, costs="built-in")(x)
    assert relative(dense, as_torch_computes(dilated, x)) < 1e-4


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_program_as_a_network_file(tmp_path: Path, dynamic: bool) -> None:
    module = sequential().eval()
    free = dict.fromkeys((2, 3, 4), torch.export.Dim.AUTO)
    options = {"dynamic_shapes": (free,)} if dynamic else {}
    file = program_file(tmp_path / "model.pt2", module, 2, **options)
    out = tmp_path / "net.yaml"
    found = znni.import_network(file, out)
    check(found, module, out)
    assert isinstance(found.parity, Parity)
    assert (found.parity.size == SIZE) is not dynamic
    assert "# 0 (aten.conv3d.default), 1 (aten.batch_norm.default)" in out.read_text()
    again = znni.import_network(torch.export.load(file), tmp_path / "again.yaml")
    assert again.network == replace(found.network, name="again")


def test_shared_and_permuted_weights_of_a_program_are_read_as_they_are(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, (1, 2, 3)), nn.Conv3d(1, 1, (1, 2, 3)))
    module[0].weight = nn.Parameter(torch.randn(3, 2, 1, 1, 1).permute(3, 2, 4, 1, 0))
    module[1].weight = module[0].weight
    with warnings.catch_warnings(action="ignore"):  # warns that a weight is not in order
        file = program_file(tmp_path / "model.pt2", module.eval())
    znni.import_network(file, tmp_path / "net.yaml")
    _, weights = read_back(tmp_path / "net.yaml")
    for name in ("conv1", "conv2"):
        assert (weights[name].weight == module[0].weight.detach().numpy()).all()


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 1, 1)

    def forward(self, x: Any) -> Any:
        return x + self.conv(x)


class Bent(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return -super().forward(x)


def hooked() -> Any:
    conv = nn.Conv3d(1, 1, 1)
    conv.register_forward_hook(lambda _module, _x, y: 2 * y)
    return conv


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.Conv3d(1, 2, 3, stride=2), "stride"),
    (lambda: nn.Conv3d(1, 2, 3, padding=1), "has padding"),
    (lambda: nn.Conv3d(1, 2, 3, padding="same"), "has padding same"),
    (lambda: nn.Conv3d(1, 2, 3, dilation=2), "dilation"),
    (lambda: nn.Sequential(nn.Conv3d(1, 2, 1), nn.Conv3d(2, 2, 1, groups=2)), "2 groups"),
    (lambda: nn.ConvTranspose3d(1, 2, 3), "cannot be represented"),
    (lambda: nn.MaxPool3d(2, stride=1), "pools 2x2x2 with stride 1x1x1"),
    (lambda: nn.MaxPool3d(2, padding=1), "has padding"),
    (lambda: nn.MaxPool3d(2, dilation=2), "dilation"),
    (lambda: nn.MaxPool3d(2, ceil_mode=True), "ceil_mode"),
    (lambda: nn.AvgPool3d(2), "cannot be represented"),
    (lambda: nn.Softmax(dim=2), "axis 2"),
    (lambda: nn.LeakyReLU(0.2), "leaky_relu has 0.01"),
    (lambda: nn.ELU(0.5), "elu has 1.0"),
    (nn.GELU, "cannot be represented"),
    (lambda: nn.GroupNorm(1, 1), "cannot be represented"),
]
ONLY_MODULES: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.MaxPool3d(2, return_indices=True), "indices"),
    (lambda: nn.BatchNorm3d(1, track_running_stats=False), "running mean"),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Conv3d(1, 1, 1)), "cannot be represented"),
    (nn.BatchNorm3d(1).train, "(BatchNorm3d) is in training mode"),
    (nn.Dropout3d(0.1).train, "(Dropout3d) is in training mode"),
    (nn.AlphaDropout(0.1).train, "(AlphaDropout) is in training mode"),
    (hooked, "has hooks"),
    (Skip, "torch.export.export"),
    (lambda: Bent(nn.Conv3d(1, 1, 1)), "torch.export.export"),
]
ONLY_PROGRAMS: list[tuple[Callable[[], Any], str]] = [
    (
        Skip,
        "is read by 1.conv (aten.conv3d.default), 1 (aten.add.Tensor); skip connections and "
        "branches cannot be represented, so U-Nets are not supported yet; ",
    ),
    (lambda: Bent(nn.Conv3d(1, 1, 1)), "aten.neg.default) cannot be represented"),
    (lambda: nn.BatchNorm3d(1).train(), "training mode"),
    (lambda: nn.Dropout3d().train(), "training mode"),
]


@pytest.mark.parametrize(("layer", "named"), [*REFUSED, *ONLY_MODULES])
def test_a_module_with_what_cannot_be_represented(
    layer: Callable[[], Any], named: str, tmp_path: Path
) -> None:
    made = layer()
    message = refusal(nn.Sequential(nn.Conv3d(1, 1, 1), made), tmp_path)
    assert message.startswith("Sequential: 1")
    assert named in message


@pytest.mark.parametrize(("layer", "named"), [*REFUSED, *ONLY_PROGRAMS])
def test_a_program_with_what_cannot_be_represented(
    layer: Callable[[], Any], named: str, tmp_path: Path
) -> None:
    made = layer()
    module = nn.Sequential(nn.Conv3d(1, 1, 1).eval(), made)
    message = refusal(program_file(tmp_path / "model.pt2", module), tmp_path)
    assert "(aten." in message
    assert named in message


def test_training_mode_that_makes_no_difference(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, 1), nn.Dropout3d(0.0), nn.BatchNorm3d(1).eval())
    assert isinstance(znni.import_network(module, tmp_path / "net.yaml").parity, Parity)
    assert module.training  # the given module is left unchanged


def test_decomposed_programs_are_told_apart(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        program = exported(sequential().eval(), 2).run_decompositions()
    assert "without run_decompositions()" in refusal(program, tmp_path)


def test_half_precision_is_refused_in_programs_and_taken_in_modules(tmp_path: Path) -> None:
    half = nn.Sequential(nn.Conv3d(1, 2, (1, 2, 3))).half()
    found = znni.import_network(half, tmp_path / "half.yaml")
    assert isinstance(found.parity, Parity)
    brain = nn.Sequential(nn.Conv3d(1, 2, 3)).bfloat16()
    program = torch.export.export(brain, (torch.zeros(1, 1, *SIZE).bfloat16(),))
    assert "export it in float32" in refusal(program, tmp_path)


def test_a_network_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, (1, 2, 3)), nn.Tanh())
    monkeypatch.setattr("znni.primitives.reference.activation", lambda y, _kind, _slope: y * 1.001)
    with pytest.raises(RunFailed, match=r"differs from what PyTorch computes by .*report this"):
        znni.import_network(module, tmp_path / "net.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # raised by the reference
def test_what_is_not_compared_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(module: Any) -> str:
        return str(znni.import_network(module, tmp_path / "net.yaml", overwrite=True))

    silent = nn.Sequential(nn.Conv3d(1, 1, 1))
    nn.init.zeros_(silent[0].weight)
    assert "not compared: its output is the same everywhere" in said(silent)
    nn.init.constant_(silent[0].weight, 3e38)
    assert "not compared: its output is not finite" in said(silent)
    small = exported(nn.Sequential(nn.Conv3d(1, 1, 3), nn.MaxPool3d(2)), size=(4, 4, 4))
    assert isinstance(znni.import_network(small, tmp_path / "small.yaml").parity, Parity)
    monkeypatch.setattr("znni.importing.parity.COPIES", 2**50)
    assert "not compared: PyTorch would take some" in said(nn.Sequential(nn.Conv3d(1, 1, 3)))
    monkeypatch.setattr("znni.importing.parity.COPIES", 3)

    class Broken(nn.Conv3d):
        pass

    broken = nn.Sequential(nn.Conv3d(1, 1, 3))
    monkeypatch.setattr(nn.Conv3d, "forward", Broken)
    assert "not compared: PyTorch could not run the original" in said(broken)
