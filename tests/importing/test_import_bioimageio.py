"""Packages of bioimage.io: which are read, with which scaling, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bioimageio_packages import Steps, outputs_of, saved, small_network, write_package, zipped
from import_cases import numbers, onnx_or_skip, refusal, relative, torch_or_skip
from ruamel.yaml import YAML

import znni
from znni.core.errors import RunFailed
from znni.core.shapes import Vec3
from znni.importing.parity import Parity
from znni.network.input_scaling import Fixed, InputScaling, Percentiles, ZScore
from znni.network.window import Window

onnx_or_skip()
VERSIONS = ("0.4.10", "0.5.3")
STORED = np.abs(numbers(1, 7, 8, 9, seed=5)) * 100 + 50


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _infer(network: Any, x: Any) -> Any:
    return znni.Inferer(network, border="same", threads=1, costs="built-in", device="cpu")(x)


def _whole(axes: str = "zyx") -> dict[str, Any]:
    return {"axes": axes}


# What is done to the input, the scaling that it becomes, and the same in NumPy.
SCALINGS: list[tuple[str, Steps, InputScaling, Callable[[Any], Any]]] = [
    ("0.4.10", [], InputScaling(), lambda x: x),
    (
        "0.4.10",
        [("scale_linear", {"axes": "zyx", "gain": 0.01, "offset": -1.0})],
        InputScaling(0.01, -1.0),
        lambda x: x * 0.01 - 1,
    ),
    (
        "0.5.3",
        [("scale_linear", {"gain": 0.5}), ("clip", {"min": 30.0, "max": 60.0})],
        InputScaling(normalize=(Fixed(0, 2, (60, 120)),)),
        lambda x: np.clip(x * 0.5, 30, 60),
    ),
    (
        "0.4.10",
        [("zero_mean_unit_variance", {"mode": "per_sample", "axes": "zyx"})],
        InputScaling(normalize=(ZScore(),)),
        lambda x: (x - x.mean()) / (x.std() + 1e-6),
    ),
    (
        "0.5.3",
        [("zero_mean_unit_variance", {"axes": ["x", "y", "z"]}), ("sigmoid", {})],
        InputScaling(normalize=(ZScore(),)),
        lambda x: _sigmoid((x - x.mean()) / (x.std() + 1e-6)),
    ),
    (
        "0.4.10",
        [
            (
                "zero_mean_unit_variance",
                {"mode": "fixed", "axes": "zyx", "mean": 100.0, "std": 20.0, "eps": 1e-6},
            )
        ],
        InputScaling(1 / 20.000001, -100 / 20.000001),
        lambda x: (x - 100) / 20,
    ),
    (
        "0.5.3",
        [("fixed_zero_mean_unit_variance", {"mean": 100.0, "std": 20.0})],
        InputScaling(0.05, -5.0),
        lambda x: (x - 100) / 20,
    ),
    (
        "0.4.10",
        [
            (
                "scale_range",
                {
                    "mode": "per_sample",
                    "axes": "zyx",
                    "min_percentile": 1.0,
                    "max_percentile": 99.8,
                },
            ),
            ("scale_linear", {"axes": "zyx", "gain": 2.0, "offset": -1.0}),
        ],
        InputScaling(normalize=(Percentiles(1.0, 99.8),)),
        lambda x: (x - np.percentile(x, 1)) / np.ptp(np.percentile(x, [1, 99.8])) * 2 - 1,
    ),
]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("version", "before", "scaling", "plainly"), SCALINGS)
def test_input_is_scaled_as_the_package_says(
    tmp_path: Path,
    version: str,
    before: Steps,
    scaling: InputScaling,
    plainly: Callable[[Any], Any],
) -> None:
    model, folder = small_network(), tmp_path / "package"
    folder.mkdir()
    scaled = plainly(STORED.astype(np.float64)).astype(np.float32)
    wanted = outputs_of(model, scaled)
    write_package(folder, version, saved(model, folder), STORED, wanted, before=before, halo=2)
    made = znni.import_network(zipped(folder), tmp_path / "net.yaml")
    assert made.network.scaling == scaling
    assert isinstance(made.parity, Parity)
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5
    assert "its test tensors of 7x8x9" in str(made)
    assert ("the whole volume here" in str(made)) == (not scaling.is_fixed)
    assert relative(_infer(tmp_path / "net.yaml", STORED), wanted) < 1e-5


@pytest.mark.parametrize("version", VERSIONS)
def test_axes_of_space_in_another_order(tmp_path: Path, version: str) -> None:
    model = small_network(2)
    given = numbers(2, 9, 8, 7, seed=6)  # x, z, y
    output = outputs_of(model, given)
    weights = saved(model, tmp_path)
    write_package(tmp_path, version, weights, given, output, space="xzy")
    made = znni.import_network(tmp_path / "rdf.yaml", tmp_path / "net.yaml")
    assert made.network.convolutions[0].kernel == Vec3(1, 5, 3)
    assert isinstance(made.parity, Parity)
    assert isinstance(made.sample, Parity)
    found = _infer(made.network, given.transpose(0, 2, 3, 1))
    assert relative(found, output.transpose(0, 2, 3, 1)) < 1e-5


@pytest.mark.slow_cases
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fixed", [True, False])
def test_windows_of_a_network_that_depends_on_them(
    tmp_path: Path, version: str, fixed: bool
) -> None:
    model = small_network(sees_windows=True)
    write_package(
        tmp_path, version, saved(model, tmp_path), STORED, outputs_of(model, STORED),
        halo=3, fixed=fixed,
    )  # fmt: skip
    made = znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert made.network.window == Window(Vec3(7, 8, 9), 6 / 9)
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5
    assert "Its halo is not cut off" in str(made)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_threshold_after_the_network(tmp_path: Path, version: str) -> None:
    model = small_network()
    values = _sigmoid(outputs_of(model, STORED / 100))
    clip, binarize = ("clip", {"min": 0.0, "max": 1.0}), ("binarize", {"threshold": 0.5})
    gain = {"gain": 0.01} | ({"axes": "zyx"} if "0.4" in version else {})
    write_package(
        tmp_path, version, saved(model, tmp_path), STORED, (values > 0.5).astype(np.float32),
        before=[("scale_linear", gain)], after=[("sigmoid", {}), clip, binarize],
    )  # fmt: skip
    made = znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert "--threshold 0.5" in str(made)
    assert "on the other side of 0.5" in str(made)
    assert made.network.layers[-1].activation == "sigmoid"


def test_each_map_has_numbers_of_its_own(tmp_path: Path) -> None:
    model, given = small_network(2), numbers(2, 7, 8, 9, seed=7) * 10
    gain, offset = np.array([0.5, -2.0]), np.array([1.0, 0.0])
    scaled = given * gain[:, None, None, None] + offset[:, None, None, None]
    along = {"axis": "channel", "gain": gain.tolist(), "offset": offset.tolist()}
    write_package(
        tmp_path, "0.5.3", saved(model, tmp_path), given, outputs_of(model, scaled),
        before=[("scale_linear", along)],
    )  # fmt: skip
    made = znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("zscore", "0.4.10"),
        ("zscore", "0.5.3"),
        ("percentiles", "0.4.10"),
        ("percentiles", "0.5.3"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_statistics_of_several_maps(
    tmp_path: Path, kind: str, version: str, together: bool
) -> None:
    model, given = small_network(2), numbers(2, 7, 8, 9, seed=7) * 10
    given[1] += 30
    axes = (0, 1, 2, 3) if together else (1, 2, 3)
    if kind == "zscore":
        step, more = "zero_mean_unit_variance", {}
        scaled = (given - given.mean(axes, keepdims=True)) / given.std(axes, keepdims=True)
    else:
        step, more = "scale_range", {"min_percentile": 1.0, "max_percentile": 99.0}
        low, high = np.percentile(given, [1, 99], axis=axes, keepdims=True)
        scaled = (given - low) / (high - low)
    if "0.4" in version:
        more |= {"mode": "per_sample", "axes": "czyx" if together else "zyx"}
    elif not together:  # without axes, all count
        more |= {"axes": ["z", "y", "x"]}
    write_package(
        tmp_path, version, saved(model, tmp_path), given, outputs_of(model, scaled),
        before=[(step, more)],
    )  # fmt: skip
    made = znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert made.network.scaling.together == together
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5


def test_test_tensors_of_another_network_write_nothing(tmp_path: Path) -> None:
    model = small_network()
    write_package(
        tmp_path, "0.5.3", saved(model, tmp_path), STORED, outputs_of(model, STORED) * 1.1
    )
    with pytest.raises(RunFailed, match="is another one"):
        znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert not list(tmp_path.glob("net.*"))


def _state_dict(folder: Path, architecture: Any) -> tuple[dict[str, Any], Any]:
    torch = torch_or_skip()
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv3d(1, 2, 3), torch.nn.ReLU(), torch.nn.Conv3d(2, 1, 1)
    )
    torch.save(module.state_dict(), folder / "weights.pt")
    entry = {"source": "weights.pt", "architecture": architecture, "pytorch_version": "2.6"}
    with torch.inference_mode():
        output = module(torch.from_numpy(STORED / 100)[None])[0].numpy()
    return {"pytorch_state_dict": entry}, output


LAYERS = """
name: cells
layers:
  - conv: {features: 2, kernel: 3, activation: relu}
  - conv: {features: 1, kernel: 1, activation: identity}
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_state_dict_of_layers_that_are_listed(tmp_path: Path, version: str) -> None:
    architecture: Any = "model.py:Net"
    if version.startswith("0.5"):
        architecture = {"callable": "Net", "source": "model.py", "kwargs": {}}
    weights, output = _state_dict(tmp_path, architecture)
    (tmp_path / "model.py").write_text("raise SystemExit('executed')\n")
    gain = {"gain": 0.01} | ({"axes": "zyx"} if "0.4" in version else {})
    write_package(tmp_path, version, weights, STORED, output, before=[("scale_linear", gain)])
    message = refusal(tmp_path, tmp_path)
    assert "Net in a file of the package; that is code, which znni does not run" in message
    (tmp_path / "layers.yaml").write_text(LAYERS)
    made = znni.import_network(tmp_path, tmp_path / "net.yaml", like=tmp_path / "layers.yaml")
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5
    assert made.network.scaling == InputScaling(0.01)


@pytest.mark.slow
def test_a_state_dict_of_a_network_of_monai(tmp_path: Path) -> None:
    torch = torch_or_skip()
    nets = pytest.importorskip("monai.networks.nets", reason="MONAI is not installed")
    given = {
        "spatial_dims": 3, "in_channels": 1, "out_channels": 2, "channels": [2, 4],
        "strides": [2], "norm": "INSTANCE",
    }  # fmt: skip
    torch.manual_seed(0)
    module = nets.UNet(**given).eval()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    entry = {
        "source": "weights.pt",
        "architecture": {"callable": "UNet", "import_from": "monai.networks.nets", "kwargs": given},
        "pytorch_version": "2.6",
    }
    x = numbers(1, 8, 12, 16)
    with torch.inference_mode():
        output = module(torch.from_numpy(x)[None])[0].numpy()
    write_package(tmp_path, "0.5.3", {"pytorch_state_dict": entry}, x, output)
    made = znni.import_network(tmp_path, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    assert isinstance(made.sample, Parity)
    assert made.sample.error < 1e-5


Content = dict[str, Any]


def _two_dimensions(content: Content) -> None:
    content["inputs"][0]["axes"] = "bcyx"


def _channels_last(content: Content) -> None:
    content["inputs"][0]["axes"] = "bzyxc"


def _older(content: Content) -> None:
    content["format_version"] = "0.3.6"


def _two_inputs(content: Content) -> None:
    content["inputs"] *= 2


def _torchscript(content: Content) -> None:
    content["weights"] = {"torchscript": content["weights"]["onnx"]}


def _on_the_web(content: Content) -> None:
    content["weights"]["onnx"]["source"] = "https://example.org/weights.onnx"


def _outside(content: Content) -> None:
    content["weights"]["onnx"]["source"] = "../weights.onnx"


def _another_file(content: Content) -> None:
    content["weights"]["onnx"]["sha256"] = "0" * 64


def _missing(content: Content) -> None:
    content["test_inputs"] = ["gone.npy"]


def _without_tests(content: Content) -> None:
    del content["test_outputs"]


def _before(name: str, **kwargs: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["inputs"][0]["preprocessing"].append({"name": name, "kwargs": kwargs})

    return change


def _after(name: str, **kwargs: Any) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        content["outputs"][0]["postprocessing"] = [{"name": name, "kwargs": kwargs}]

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_two_dimensions, "is a model of two dimensions"),
        (_channels_last, "has the axes 'bzyxc'; those read here are b, c"),
        (_older, "format version 0.3.6"),
        (_two_inputs, "has inputs raw, raw"),
        (_torchscript, "of TorchScript, that is code, which znni does not run"),
        (_on_the_web, "is on the web"),
        (_outside, "lies outside of the package"),
        (_another_file, "is damaged or another file"),
        (_missing, "gone.npy is missing"),
        (_without_tests, "has no test tensor of cells"),
        (_before("binarize", threshold=3), "preprocessing binarize is not known here"),
        (_before("custom"), "preprocessing custom is not known here"),
        (_before("clip", min=0, max=1), "znni clips stored values only"),
        (_before("zero_mean_unit_variance", axes="zyx"), "takes statistics of values that are"),
        (_before("scale_linear", gain="1"), "has '1' where one finite number is expected"),
        (_before("scale_linear", gain=[1, 2]), "numbers for 2 maps, and there are 1"),
        (_after("scale_range", axes="zyx"), "postprocessing scale_range of its output cells"),
        (_after("clip", min=0, max=1), "postprocessing clip of its output cells"),
        (lambda content: content.pop("inputs"), "wrong or missing at inputs"),
    ],
)
def test_packages_that_are_not_read(
    tmp_path: Path, spoil: Callable[[Content], object], message: str
) -> None:
    model = small_network()
    write_package(
        tmp_path, "0.4.10", saved(model, tmp_path), STORED, outputs_of(model, STORED),
        before=[("zero_mean_unit_variance", {"mode": "per_sample", "axes": "zyx"})],
    )  # fmt: skip
    parser = YAML(typ="safe", pure=True)
    content = parser.load((tmp_path / "rdf.yaml").read_text())
    spoil(content)
    with (tmp_path / "rdf.yaml").open("w") as file:
        parser.dump(content, file)
    assert message in refusal(tmp_path, tmp_path)


def test_files_that_are_no_packages(tmp_path: Path) -> None:
    (tmp_path / "model.zip").write_bytes(b"PK no zip")
    assert "cannot be read as a zip" in refusal(tmp_path / "model.zip", tmp_path)
    (tmp_path / "other.yaml").write_text("a: 1")
    assert "the format version none" in refusal(tmp_path / "other.yaml", tmp_path)
    (tmp_path / "deep.yaml").write_text("[" * 40)
    assert "more than 16 levels" in refusal(tmp_path / "deep.yaml", tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "README.md").write_text("")
    assert "has no rdf.yaml" in refusal(zipped(tmp_path / "folder", "empty.zip"), tmp_path)
