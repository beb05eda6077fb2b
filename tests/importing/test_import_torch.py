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
from znni.primitives.tiled_reference import output_at_once

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


@pytest.mark.slow
def test_a_module_as_a_network_file(tmp_path: Path) -> None:
    module = sequential().eval()
    out = tmp_path / "net.yaml"
    found = znni.import_network(module, out)
    said = [line.partition(": ")[0] for line in str(found).splitlines()]
    assert said[0] == str(out)
    assert said[1] == str(tmp_path / "net.safetensors")
    assert "compared with PyTorch on random input of 5x14x15" in said
    assert "# 0 (aten.conv3d.default), 1 (aten.batch_norm.default)" in out.read_text()
    assert "# 5.0 (aten.conv3d.default), 5.2 (aten.leaky_relu.default)" in out.read_text()
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


@pytest.mark.slow
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
    """A module whose parts are joined as a function says."""

    def __init__(self, join: Callable[[Any, Any], Any], maps: int = 2, **options: Any) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, maps, 3, padding=1)
        self.second = nn.Conv3d(maps, options.pop("out", maps), 3, padding=1, **options)
        self.join = join

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.join(x, self.second(x))


class Bent(nn.Sequential):
    def forward(self, x: Any) -> Any:
        return -super().forward(x)


def hooked() -> Any:
    conv = nn.Conv3d(1, 1, 1)
    conv.register_forward_hook(lambda _module, _x, y: 2 * y)
    return conv


class UNet(nn.Module):
    """A U-Net with what its kind has: batch norm, PReLU, pools, and joins of all sorts."""

    def __init__(self, up: str = "transposed", padding: int = 1) -> None:
        super().__init__()
        self.padding, self.kind = padding, up

        def block(taken: int, out: int) -> Any:
            conv = nn.Conv3d(taken, out, 3, padding=padding, bias=False)
            return nn.Sequential(conv, nn.BatchNorm3d(out), nn.PReLU(out))

        self.start, self.low, self.end = block(1, 3), block(3, 4), block(7, 3)
        self.up = nn.ConvTranspose3d(4, 4, 2, stride=2)
        self.head = nn.Conv3d(3, 2, 1)

    def forward(self, x: Any) -> Any:
        skip = self.start(x)
        low = self.low(nn.functional.max_pool3d(skip, 2))
        if self.kind == "transposed":
            low = self.up(low)
        elif self.kind == "sized":
            low = nn.functional.interpolate(low, size=skip.shape[2:])
        else:
            low = nn.functional.interpolate(low, scale_factor=2.0, mode=self.kind)
        if not self.padding:
            before = [(a - b) // 2 for a, b in zip(skip.shape[2:], low.shape[2:], strict=True)]
            (z, y, w), (a, b, c) = before, low.shape[2:]
            skip = skip[:, :, z : z + a, y : y + b, w : w + c]
        return self.head(self.end(torch.cat([low, skip], 1))).softmax(1)


class Residual(nn.Module):
    """Batch norm before and after sums; a stride, an average and groups below a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv3d(1, 4, (1, 3, 3), padding="same")
        self.norm, self.second = nn.BatchNorm3d(4), nn.BatchNorm3d(4)
        self.low = nn.Conv3d(4, 4, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose3d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=4)
        self.wide = nn.Conv3d(4, 4, 3, padding=2, dilation=2)
        self.gate = nn.Conv3d(4, 1, 1)

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        y = self.wide(nn.functional.leaky_relu(self.norm(x), 0.2)) + x
        z = nn.functional.elu(self.low(y)) + nn.functional.avg_pool3d(y, 2)
        y = torch.relu_(self.second(self.up(z) + y))
        gate = torch.sigmoid(self.gate(y))
        return nn.functional.gelu(y * gate) + nn.functional.max_pool3d(y, 3, 1, 1) * 0.5


class Squeezed(nn.Module):
    """Gates for each map from globally pooled values, and one for each voxel; the larger counts."""

    def __init__(self, pooling: str = "mean") -> None:
        super().__init__()
        self.start, self.gate = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 1, 1)
        self.average, self.peak = nn.AdaptiveAvgPool3d(1), nn.AdaptiveMaxPool3d(1)
        self.narrow, self.wide = nn.Linear(4, 2), nn.Linear(2, 4, bias=False)
        self.pooling = pooling

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        match self.pooling:
            case "mean":
                found = self.average(x).view(x.shape[:2])
            case "max":
                found = torch.maximum(self.peak(x), 0.1 * self.average(x)).flatten(1)
            case _:
                found = x.mean((-1, -2, -3)) - x.amax((2, 3, 4), keepdim=True).reshape(1, -1)
        found = torch.sigmoid(self.wide(torch.relu(self.narrow(found))))
        by_map = x * found.view(1, 4, 1, 1, 1).expand_as(x)
        return torch.max(by_map, x * torch.sigmoid(self.gate(x)))


class Short(nn.Module):
    """A transposed convolution that gives one sample too few, and is resized to the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv3d(1, 3, 3, padding=1)
        self.up = nn.ConvTranspose3d(3, 3, 3, stride=(1, 2, 2), padding=1)

    def forward(self, x: Any) -> Any:
        skip = self.start(x)
        low = self.up(nn.functional.max_pool3d(skip, (1, 2, 2)))
        return torch.relu(nn.functional.interpolate(low, size=skip.shape[2:])) + skip


class Odd(nn.Module):
    """A U-Net for inputs of odd extents."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = nn.Conv3d(1, 2, 2), nn.Conv3d(4, 2, 1)

    def forward(self, x: Any) -> Any:
        skip = self.start(x)
        low = nn.functional.interpolate(nn.functional.max_pool3d(skip, 2), size=skip.shape[2:])
        return self.end(torch.cat([low, skip], 1))


class Pieces(nn.Module):
    """Padding apart from what it is for, and transposed convolutions with all they may have."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.ConstantPad3d((1, 1, 2, 0, 1, 1), 0.0), nn.Conv3d(1, 4, 3))
        self.up = nn.ConvTranspose3d(4, 2, (3, 2, 2), dilation=(1, 2, 2), padding=1, groups=2)
        self.end = nn.ConvTranspose3d(4, 2, 1)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x: Any) -> Any:
        x = self.start(x)
        y = nn.functional.avg_pool3d(nn.functional.pad(x, (1, 1, 1, 1)), (1, 3, 3), stride=1)
        first, second = torch.split(self.end(y), [1, 1], 1)
        return self.up(x) * self.scale + torch.rsub(first, 1.0).contiguous() - second


def randomized(module: Any) -> Any:
    """Return a module in evaluation mode, with random statistics and slopes."""
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm3d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
                layer.weight.normal_()
                layer.bias.normal_()
            if isinstance(layer, nn.PReLU):
                layer.weight.uniform_(-0.3, 0.5)
    return module.eval()


# The extents of some values are computed from those of others. So free sizes are another program.
SIZED: dict[str, Callable[[], Any]] = {
    "transposed": UNet,
    "nearest": lambda: UNet("nearest"),
    "trilinear": lambda: UNet("trilinear"),
    "sized": lambda: UNet("sized"),
    "valid": lambda: UNet("nearest", padding=0),
    "residual": Residual,
    "short": Short,
    "squeezed": Squeezed,
    "peaks": lambda: Squeezed("max"),
    "apart": lambda: Squeezed("both"),
    "odd": Odd,
    "pieces": Pieces,
}
JOINED: dict[str, Callable[[], Any]] = SIZED | {
    "difference": lambda: Skip(lambda a, b: (1 - a) - 2 * b),
    "product": lambda: Skip(lambda a, b: torch.sigmoid(a) * b / 3),
    "silu": lambda: Skip(lambda a, b: torch.cat([nn.functional.silu(a), -b], 1)),
    "parts": lambda: Skip(lambda a, b: torch.cat([*reversed(a.chunk(2, 1)), b[:, 1:]], 1)),
    "one map": lambda: Skip(lambda a, b: a + b, out=1),
    "repeated": lambda: Skip(lambda a, b: a + b.repeat(1, 2, 1, 1, 1), out=1),
    "constant": lambda: Skip(lambda a, b: a * torch.tensor(2.5) + b),
    "padded": lambda: Skip(lambda a, b: a + nn.functional.pad(b, (0, 0, 0, 0, 0, 0))),
    "unused": lambda: Skip(lambda a, b: (torch.relu(b), a)[1]),
    "in place": lambda: Skip(lambda a, b: (a.relu_(), a + b)[1]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in JOINED), *((name, True) for name in SIZED)]
)
def test_a_graph_as_a_network_file(name: str, dynamic: bool, tmp_path: Path) -> None:
    module, out = randomized(JOINED[name]()), tmp_path / "net.yaml"
    size = {"valid": (10, 10, 12), "odd": (3, 5, 7)}.get(name, (4, 6, 8))
    free = dict.fromkeys((2, 3, 4), torch.export.Dim.AUTO)
    options = {"dynamic_shapes": (free,)} if dynamic else {}
    found = znni.import_network(exported(module, size=size, **options), out)
    assert isinstance(found.parity, Parity)
    assert (found.parity.size == size) is not dynamic
    x = numbers(1, *size)
    assert relative(pooled(read_back(out), x), as_torch_computes(module, x)) < 1e-5


def test_a_module_with_joins_is_exported(tmp_path: Path) -> None:
    module, out = randomized(UNet("sized")), tmp_path / "net.yaml"
    found = znni.import_network(module, out)
    assert isinstance(found.parity, Parity)
    assert [layer.kind for layer in found.network.layers] == [
        "conv",
        "pool",
        "conv",
        "upsample",
        "concat",
        "conv",
        "conv",
    ]
    x = numbers(1, 4, 6, 8)
    assert relative(pooled(read_back(out), x), as_torch_computes(module, x)) < 1e-5


@pytest.mark.slow
def test_the_maps_of_a_module_s_input_are_found(tmp_path: Path) -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Conv3d(4, 2, 1), nn.Conv3d(3, 4, 3)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x))

    found = znni.import_network(Backwards(), tmp_path / "net.yaml")
    assert found.network.in_features == 3
    assert isinstance(found.parity, Parity)


@pytest.mark.slow
def test_a_network_for_odd_extents_is_exported(tmp_path: Path) -> None:
    found = znni.import_network(randomized(Odd()), tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert [extent % 2 for extent in found.parity.size] == [1, 1, 1]


def test_several_outputs_are_named_in_the_file(tmp_path: Path) -> None:
    for join in (lambda a, b: (a, torch.sigmoid(b)), lambda a, b: {"a": a, "b": torch.sigmoid(b)}):
        module, out = randomized(Skip(join)), tmp_path / "net.yaml"
        found = znni.import_network(module, out, overwrite=True)
        assert isinstance(found.parity, Parity)
        assert 'outputs: ["conv1", "conv2"]' in out.read_text()
        x = numbers(1, 4, 5, 6)
        with torch.no_grad():
            made = module.float()(torch.from_numpy(x)[None])
        several = made.values() if isinstance(made, dict) else made
        wanted = np.concatenate([each[0].numpy() for each in several])
        assert relative(pooled(read_back(out), x), wanted) < 1e-5


def test_a_gelu_may_be_approximated(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 2, 3), nn.GELU("tanh"), nn.Conv3d(2, 1, 1))
    found = znni.import_network(module, tmp_path / "net.yaml")
    assert found.network.convolutions[0].activation == "gelu_tanh"
    assert isinstance(found.parity, Parity)


def test_hooks_and_subclasses_are_exported_with_the_rest(tmp_path: Path) -> None:
    for module in (nn.Sequential(hooked()), Bent(nn.Conv3d(1, 1, 1))):
        found = znni.import_network(module, tmp_path / "net.yaml", overwrite=True)
        assert isinstance(found.parity, Parity)
        assert len(found.network.layers) == 1


WINDOWS = "depends on a whole window in a way that this version does not run; "
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.MaxPool3d(2, ceil_mode=True), "ceil_mode"),
    (lambda: nn.AvgPool3d(3, 1, 1, count_include_pad=False), "count_include_pad=True"),
    (lambda: nn.AvgPool3d(2, divisor_override=3), "divisor_override"),
    (lambda: nn.Softmax(dim=2), "axis 2"),
    (lambda: nn.ELU(0.5), "elu has 1 here"),
    (nn.Hardtanh, "cannot be represented"),
    (lambda: nn.AdaptiveAvgPool3d(2), "only a whole window is pooled here"),
    (
        lambda: nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True),
        "align_corners=False",
    ),
    (lambda: nn.Upsample(scale_factor=1.5), "only whole factors"),
    (lambda: nn.ConstantPad3d(1, 0.5), "that are no zeros; pad with zeros"),
    (lambda: nn.BatchNorm3d(1, track_running_stats=False), "running mean"),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Conv3d(1, 1, 1)), "remove_parametrizations"),
    (lambda: nn.BatchNorm3d(1).train(), "is in training mode"),
    (lambda: nn.InstanceNorm3d(1, track_running_stats=True).train(), "is in training mode"),
    (lambda: nn.Dropout3d(0.1).train(), "is in training mode"),
    (lambda: nn.AlphaDropout(0.1).train(), "is in training mode"),
]


def built(layer: Callable[[], Any]) -> Any:
    return nn.Sequential(nn.Conv3d(1, 1, 1).eval(), layer())


@pytest.mark.slow_cases
@pytest.mark.parametrize(("layer", "named"), REFUSED)
def test_a_module_with_what_cannot_be_represented(
    layer: Callable[[], Any], named: str, tmp_path: Path
) -> None:
    message = refusal(built(layer), tmp_path)
    assert message.startswith("Sequential: ")
    why = message.removeprefix("Sequential: ").rpartition("Why it is not imported: ")[2]
    assert why.startswith("1")
    assert named in why


@pytest.mark.parametrize(("layer", "named"), REFUSED)
def test_a_program_with_what_cannot_be_represented(
    layer: Callable[[], Any], named: str, tmp_path: Path
) -> None:
    message = refusal(program_file(tmp_path / "model.pt2", built(layer), size=(5, 5, 5)), tmp_path)
    assert "(aten." in message
    assert named in message


def test_an_output_keeps_the_axis_of_its_only_map(tmp_path: Path) -> None:
    class OneMap(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.squeeze(1)

    message = refusal(nn.Sequential(nn.Conv3d(1, 1, 3), OneMap()), tmp_path)
    assert "(aten.squeeze.dim) adds or takes away an axis; samples keep their axes" in message
    assert message.endswith("leave it out of the network's forward(), and export the network again")


def test_pooling_of_padded_values_lowers_the_resolution_for_good(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, 3, padding=1), nn.AvgPool3d(2))
    message = refusal(module, tmp_path)
    assert "a sample of its output spans 2x2x2 voxels; end it with upsampling" in message


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_convolutions_may_see_samples_of_their_own_beyond_the_volume(
    mode: str, tmp_path: Path
) -> None:
    module = nn.Sequential(
        nn.Conv3d(1, 2, (3, 1, 3), padding=(1, 0, 1), padding_mode=mode),
        nn.ReLU(),
        nn.Conv3d(2, 2, 3, padding=1, padding_mode=mode),
    )
    found = znni.import_network(module, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert ("depends on whole windows" in str(found)) is (mode == "circular")
    x = numbers(1, 5, 6, 7)
    made = output_at_once(*read_back(tmp_path / "net.yaml"), x)
    assert relative(made, as_torch_computes(module, x)) < 1e-5


def test_averages_and_strides_slide_over_every_voxel(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv3d(1, 3, (2, 3, 3), stride=(1, 2, 1)),
        nn.AvgPool3d(2, (1, 2, 2)),
        nn.MaxPool3d(2, 1, dilation=(1, 2, 1)),
        nn.Conv3d(3, 2, 2),
    )
    found = znni.import_network(module, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert "gives an output for every 1x4x2 voxels" in str(found)
    x = numbers(1, 6, 19, 13)
    dense = output_at_once(*read_back(tmp_path / "net.yaml"), x)
    assert relative(dense[:, :, ::4, ::2], as_torch_computes(module, x)) < 1e-4


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("join", "named"),
    [
        (lambda a, b: a + b.mean((2, 3, 4), keepdim=True), "joins values of 1x1x1 and"),
        (lambda a, b: a + b.mean(1, keepdim=True), "is part of no norm that is known here"),
        (lambda a, b: a + b.view(1, 2, -1).view_as(a), "only globally pooled values change"),
        (lambda a, b: a / b, "divides by a value"),
        (lambda a, b: a / 0 + b, "divides by zero"),
        (lambda a, _b: torch.cat(a.chunk(2, 2), 1), "splits axis 2"),
        (lambda a, b: a.softmax(1, dtype=torch.float64).float() + b, "changes the type of numbers"),
        (lambda a, b: torch.where(a > 0, a, b), "gt.Scalar) cannot be represented"),
        (lambda a, b: (a + b).argmax(1), "export the network without it, and give a run labels="),
        (lambda a, b: torch.cat([a, b], 2), "joins values along axis 2"),
        (lambda a, _b: a + torch.arange(6.0), "computes with parameters only"),
        (lambda a, b: a[:, :, ::2] + b[:, :, 1::2], "takes every 2th sample along axis z"),
        (lambda a, b: a[..., 1:] + b[..., :-1], "by itself would crop"),
        (lambda a, _b: nn.functional.max_pool3d(a[..., 1:-1], 3, 1, 1), "crops what max_pool3d"),
        (lambda a, b: a + nn.functional.pad(b, (-1, 1)), "crops what pad (aten.pad.default) reads"),
        (lambda a, b: a + nn.functional.pad(b[..., :-1], (0, 1)), "crops what pad (aten.pad"),
        (lambda a, b: nn.functional.pad(a + b, (0, 1)), "gives more voxels than it takes"),
        (lambda a, b: a @ b, WINDOWS + "replace it by convolutions"),
        (lambda a, b: (a + b)[..., 1:-1], "crops what the output reads"),
        (lambda a, b: (a, nn.functional.max_pool3d(b, 2)), "whose extents differ; export it"),
        (lambda a, _b: nn.functional.interpolate(a, size=(9, 9, 9)) + 1, "only whole factors"),
        (lambda a, _b: a.repeat(1, 1, 2, 1, 1) + 1, "only maps are repeated"),
        (lambda a, b: a.permute(0, 1, 3, 2, 4) + b, "permute.default) permutes axes to [0, 1, 3,"),
    ],
)
def test_joins_that_cannot_be_represented(join: Any, named: str, tmp_path: Path) -> None:
    message = refusal(exported(Skip(join).eval(), size=(6, 6, 6)), tmp_path)
    assert message.startswith("ExportedProgram: ")
    assert named in message


@pytest.mark.slow
def test_a_module_that_cannot_be_exported(tmp_path: Path, capfd: Any) -> None:
    module = Skip(lambda a, b: a if a.sum() > 0 else b)
    message = refusal(module, tmp_path)
    assert message.startswith("Skip: cannot be exported: ")
    assert "torch.export.export(module.eval()" in message
    assert "no 3D convolution" in refusal(nn.Linear(2, 2), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_training_mode_that_makes_no_difference(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, 1), nn.Dropout3d(0.0), nn.BatchNorm3d(1).eval())
    assert isinstance(znni.import_network(module, tmp_path / "net.yaml").parity, Parity)
    assert module.training  # the given module is left unchanged


@pytest.mark.slow
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
    monkeypatch.setattr("bench.reference.activation", lambda y, _kind, _slope: y * 1.001)
    with pytest.raises(RunFailed, match=r"differs from what PyTorch computes by .*report this"):
        znni.import_network(module, tmp_path / "net.yaml")
    assert not list(tmp_path.iterdir())


def test_a_network_that_classifies_whole_images_is_refused(tmp_path: Path) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv3d(1, 4, 3, padding=1), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.linear(self.conv(x).mean((2, 3, 4)))

    said = refusal(Classifier(), tmp_path)
    assert "its output has one sample for a whole window, as a classifier's; give a network" in said


@pytest.mark.slow
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
        def forward(self, x: Any) -> Any:
            if torch.is_inference_mode_enabled():
                raise ValueError("not here")
            return super().forward(x)

    broken = nn.Sequential(Broken(1, 1, 3))
    assert "not compared: PyTorch could not run the original: not here" in said(broken)
    program = exported(Skip(torch.add), size=(5, 5, 5))
    monkeypatch.setattr("znni.importing.parity.whole_input", lambda _network, size: size + 1)
    assert "not compared: it was exported for an input of 5x5x5, which does not" in said(program)
