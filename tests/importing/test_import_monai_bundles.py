"""Bundles of MONAI: what is read, and what is an error. ``tests/cases`` has their labels."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from import_cases import refusal
from monai_bundles import (
    AFTER,
    ARGMAX,
    BEFORE,
    INFERER,
    INVERTED,
    SAVED,
    SIGMOID,
    SOFTMAX,
    THRESHOLD,
    UNET,
    config,
    torch,
    write_bundle,
)

import znni
from znni.core.shapes import Vec3
from znni.importing.monai_config import Config, Expression
from znni.importing.parity import Parity
from znni.network.case_rules import ScaleRange
from znni.network.window import Window


def with_transform(transform: dict[str, Any], **replaced: Any) -> dict[str, Any]:
    """Return preprocessing with a transform changed, or put at the end."""
    names = [each["_target_"] for each in BEFORE]
    given = transform | replaced
    if given["_target_"] in names:
        place = names.index(given["_target_"])
        given = BEFORE[place] | given
        return {"transforms": [*BEFORE[:place], given, *BEFORE[place + 1 :]], "_target_": "Compose"}
    return {"_target_": "Compose", "transforms": [*BEFORE, given]}


def before(name: str, **arguments: Any) -> dict[str, Any]:
    return {"preprocessing": with_transform({"_target_": name, "keys": "image"}, **arguments)}


def after(*transforms: dict[str, Any]) -> dict[str, Any]:
    return {"postprocessing": {"_target_": "Compose", "transforms": list(transforms)}}


def test_a_bundle_becomes_a_network_for_whole_cases(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", config())
    imported = znni.import_network(bundle, tmp_path / "net.yaml")
    assert isinstance(imported.parity, Parity)
    network = imported.network
    assert network.window == Window(Vec3(8, 16, 16), 0.5, "constant", activation="softmax")
    assert network.labels == (("background", 0), ("spleen", 1), ("liver", 2))
    assert network.spacing is not None
    assert network.spacing.text == "2,1.5,1.5millimeter"
    case = network.case
    assert case is not None
    assert (case.channels, case.orientation, case.align) == (("CT",), "RAS", "first")
    assert (case.image.order, case.output.order) == (1, 1)
    assert case.values == (ScaleRange((-57, 164), (0, 1), clip=True),)
    assert "is for whole scans" in str(imported)
    assert "takes voxels as they are stored" not in str(imported)


def test_a_bundle_in_yaml_is_read(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", config())
    file = bundle / "configs" / "inference.json"
    file.rename(file.with_suffix(".yaml"))  # JSON is YAML, too
    (bundle / "configs" / "metadata.json").unlink()
    network = znni.import_network(bundle, tmp_path / "net.yaml").network
    assert network.labels == (("map 0", 0), ("map 1", 1), ("map 2", 2))


# Changes of a bundle, and what the error names.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"classes": "$len(glob.glob('*'))"}, "is the expression $len"),
    ({"network_def": UNET | {"channels": "@widths"}}, "inference.json has no widths"),
    ({"a": "@b", "b": "@a", "classes": "@a"}, "refer to themselves"),
    ({"network_def": UNET | {"_target_": "os.system"}}, "its network is system"),
    ({"network_def": {"_target_": "$print"}}, "a component with _target_ is expected"),
    ({"network_def": UNET | {"channels": [4, 9]}}, "do not fit UNet of monai"),
    ({"network_def": UNET | {"spatial_dims": 2}}, "is of two dimensions"),
    ({"network_def": UNET | {"_disabled_": True}}, "its network is switched off"),
    ({"inferer": {"_target_": "SimpleInferer"}}, "its inferer is SimpleInferer"),
    ({"inferer": INFERER | {"overlap": [0.5, 0.5, 0.25]}}, "one share for all axes"),
    ({"inferer": INFERER | {"roi_size": [16, -1, 16]}}, "extents above 0"),
    ({"inferer": INFERER | {"roi_size": "$@size"}}, "has no size"),
    ({"inferer": INFERER | {"sigma_scale": 0.2}}, "has sigma_scale: 0.2"),
    ({"inferer": INFERER | {"cval": -1}}, "has cval: -1"),
    (before("Orientationd", axcodes="LPS"), "its Orientation is LPS"),
    (before("Spacingd", mode="bicubic"), "mode bicubic"),
    (before("Spacingd", pixdim=[1, -1, 1]), "three numbers above 0"),
    (before("Spacingd", padding_mode="zeros"), "has padding_mode: zeros"),
    (before("Spacingd", pixdim="$@a + 1"), "is the expression $@a + 1"),
    (before("ScaleIntensityRanged", a_max="$max(1, 2)"), "is the expression $max(1, 2)"),
    (before("CropForegroundd", source_key="image"), "has CropForegroundd"),
    (before("Lambdad", func="$lambda x: x"), "has Lambdad"),
    (before("NormalizeIntensityd", subtrahend=[1, 2]), "has subtrahend [1, 2]"),
    (before("Orientation", axcodes="RAS"), "Orientation after other changes"),
    (before("EnsureTyped", dtype="$torch.float16"), "gives $torch.float16"),
    (after(SOFTMAX, INVERTED), "has no AsDiscrete"),
    (after(SOFTMAX, ARGMAX), "has no Invert"),
    (after(SOFTMAX, ARGMAX, INVERTED), "interpolates labels"),
    (after(INVERTED, SIGMOID, THRESHOLD), "has Activations after Invert"),
    (after(INVERTED, ARGMAX | {"threshold": 0.5}), "one of them is expected"),
    (after(INVERTED, ARGMAX | {"to_onehot": 3}), "has to_onehot: 3"),
    (after(*AFTER, {"_target_": "FillHolesd", "keys": "pred"}), "has FillHolesd"),
    (
        after(SOFTMAX, {"_target_": "KeepLargestConnectedComponentd"}, INVERTED, ARGMAX),
        "before Invert or AsDiscrete",
    ),
    (
        after(SIGMOID, INVERTED, THRESHOLD, {"_target_": "KeepLargestConnectedComponentd"}),
        "keeps the largest component of 3 masks",
    ),
    (
        {
            **before("Spacingd", mode=3),
            **after(SOFTMAX, INVERTED, ARGMAX),
        },
        "by splines of order 3",
    ),
]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[each for _, each in REFUSED])
def test_what_znni_does_not_do_is_an_error(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bundle = write_bundle(tmp_path / "bundle", config())
    (bundle / "configs" / "inference.json").write_text(json.dumps(config(**changes)))
    assert message in refusal(bundle, tmp_path)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", config())
    model = bundle / "models" / "model.pt"
    model.rename(model.with_suffix(".ts"))
    assert "model.ts is TorchScript" in refusal(bundle, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(torch.nn.Conv3d(1, 1, 1)), model)
    assert "TorchScript" in refusal(bundle, tmp_path)
    file = bundle / "configs" / "inference.json"
    for text, message in (
        ("{", "inference.json cannot be read"),
        ("[]", "is no configuration"),
        ("{}", "inference.json has no preprocessing"),
        ('{"preprocessing": 3}', "preprocessing is 3; a component"),
    ):
        file.write_text(text)
        assert message in refusal(bundle, tmp_path)
    file.unlink()
    assert "no configs/inference.json of a MONAI bundle" in refusal(bundle, tmp_path)


def test_references_are_followed_and_nothing_is_evaluated() -> None:
    found = Config(
        {
            "a": {"b": [1, {"c": "@d"}]},
            "d": "$(1, -2.5)",
            "e": "$@a::b#1::c",
            "f": "$__import__('os').getcwd()",
            "g": ["%other.json::x", "text", "$@a::b + 1"],
        },
        "test.json",
    )
    assert found.part("e") == [1, -2.5]
    assert found.part("a") == {"b": [1, {"c": [1, -2.5]}]}
    assert found.part("f") == Expression("$__import__('os').getcwd()")
    assert found.part("g") == [Expression("%other.json::x"), "text", Expression("$@a::b + 1")]


@pytest.mark.slow
def test_a_saved_transform_changes_nothing(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", config(**after(*AFTER[:3], SAVED)))
    znni.import_network(bundle, tmp_path / "net.yaml")
