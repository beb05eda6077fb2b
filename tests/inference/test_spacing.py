"""A network runs over voxels of the size that it was trained on, unless its user says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import SMALL_NET, refused, succeeds

import znni
from znni.core.errors import InvalidInput
from znni.core.logged import warn_once
from znni.network.description import describe
from znni.network.network_file import load_network, network_from_text

OPTIONS: Any = {"random_seed": 0, "threads": 1, "costs": "built-in"}


def network(tmp_path: Path, spacing: str) -> Path:
    path = tmp_path / "net.yaml"
    path.write_text(f"{SMALL_NET}spacing: {spacing}\n")
    return path


def volume(tmp_path: Path, **attributes: Any) -> Path:
    path = tmp_path / "volume.h5"
    with h5py.File(path, "w") as file:
        file["raw"] = np.random.default_rng(0).random((12, 13, 14), np.float32)
        file["raw"].attrs.update(attributes)
    return path


@pytest.mark.parametrize(
    ("spacing", "size", "units"),
    [
        ("5,1.5,1.5", (5.0, 1.5, 1.5), "millimeter,millimeter,millimeter"),
        ("5,1.5,1.5", (5.0, 1.5, 1.5), ",,"),
        ("[5, 1.5, 1.5]", (5.01, 1.51, 1.49), ",,"),
        ("40nm", (0.04, 0.04, 0.04), "micrometer,micrometer,micrometer"),
        ("1.5mm", (1500.0, 1500.0, 1500.0), "micrometer,micrometer,micrometer"),
        ("1.5mm", (1.5, 1.5, 1.5), ",,"),
    ],
)
def test_voxels_of_the_same_size_run(tmp_path: Path, spacing: str, size: Any, units: str) -> None:
    source = volume(tmp_path, voxel_size=size, voxel_units=units)
    report = znni.infer(source, network(tmp_path, spacing), tmp_path / "out.h5", **OPTIONS)
    assert report.voxels > 0


@pytest.mark.parametrize(
    ("spacing", "size", "units"),
    [
        ("1.5,1.5,1.5", (3.0, 1.5, 1.5), "millimeter,millimeter,millimeter"),
        ("5,1.5,1.5", (1.5, 1.5, 5.0), ",,"),
        ("40nm", (40.0, 40.0, 40.0), "micrometer,micrometer,micrometer"),
    ],
)
def test_other_voxels_are_refused_with_both_sizes_and_remedies(
    tmp_path: Path, spacing: str, size: Any, units: str
) -> None:
    source = volume(tmp_path, voxel_size=size, voxel_units=units)
    net, out = network(tmp_path, spacing), tmp_path / "out.h5"
    with pytest.raises(InvalidInput, match="has voxels of") as error:
        znni.infer(source, net, out, **OPTIONS)
    said = str(error.value)
    assert f"{size[0]:g}, {size[1]:g}, {size[2]:g}" in said
    assert "was trained on voxels of" in said
    assert "--any-spacing" in said
    unit = any(letter.isalpha() for letter in spacing)
    assert ("--voxel-size" if unit else f"spacing: {spacing}mm") in said
    options = ("--net", net, "--random-weights", "0", "--out", out, "--costs", "built-in")
    assert "has voxels of" in refused("infer", source, *options, "--dry-run")
    assert not out.exists()
    assert znni.infer(source, net, out, any_spacing=True, **OPTIONS).voxels > 0
    corrected = {"voxel_size": load_network(net).spacing.text}  # type: ignore[union-attr]
    assert znni.infer(source, net, out, overwrite=True, **corrected, **OPTIONS).voxels > 0


@pytest.mark.parametrize(
    "attributes", [{}, {"voxel_size": (1.0, 1.5, 1.5), "voxel_units": ",millimeter,millimeter"}]
)
def test_a_volume_of_unknown_voxels_runs_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attributes: dict[str, Any]
) -> None:
    net, source, out = network(tmp_path, "1.5mm"), volume(tmp_path, **attributes), tmp_path / "o.h5"
    znni.infer(source, net, out, **OPTIONS)
    assert "does not say how large its voxels are" in caplog.text
    assert "--voxel-size" in caplog.text
    caplog.clear()
    with pytest.raises(InvalidInput, match="has voxels of 1, 1, 1"):
        znni.infer(source, net, out, overwrite=True, voxel_size="1mm", **OPTIONS)
    znni.infer(source, net, out, overwrite=True, voxel_size="1.5mm", **OPTIONS)
    assert "does not say" not in caplog.text


def test_a_plan_for_a_file_looks_at_its_voxels(tmp_path: Path) -> None:
    net = network(tmp_path, "1.5mm")
    source = volume(tmp_path, voxel_size=(3.0, 1.5, 1.5), voxel_units=",".join(["millimeter"] * 3))
    command = ("plan", "--net", net, "--volume", source, "--threads", "1", "--costs", "built-in")
    assert "has voxels of 3, 1.5, 1.5 millimeter" in refused(*command)
    assert "has voxels of" in refused(*command)  # no text of a plan is kept
    assert "--any-spacing to run all the same" in refused(*command)
    for allowed in (("--any-spacing",), ("--voxel-size", "1.5mm")):
        assert "network" in succeeds(*command, *allowed)
    assert "has voxels of" in refused(*command)
    assert "has voxels of 1, 1, 1" in refused(*command, "--voxel-size", "1mm")


def test_a_plan_warns_of_unknown_voxels_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, source = network(tmp_path, "1.5mm"), volume(tmp_path)
    command = ("plan", "--net", net, "--volume", source, "--threads", "1", "--costs", "built-in")
    for _ in range(2):
        warn_once.cache_clear()
        caplog.clear()
        succeeds(*command)
        assert "does not say how large its voxels are" in caplog.text


def test_an_inferer_compares_the_voxels_that_it_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = load_network(network(tmp_path, "1.5mm"))
    weights = znni.random_weights(net, 0)
    options: Any = {"threads": 1, "costs": "built-in"}
    with pytest.raises(InvalidInput, match="the array has voxels of 1, 1, 1 millimeter"):
        znni.Inferer(net, weights, voxel_size="1mm", **options)
    with pytest.raises(InvalidInput, match="voxel_size='nothing'"):
        znni.Inferer(net, weights, voxel_size="nothing", **options)
    for told in ({"voxel_size": "1.5mm"}, {"voxel_size": "1mm", "any_spacing": True}):
        znni.Inferer(net, weights, **told, **options)
    assert not caplog.text
    znni.Inferer(net, weights, **options)
    assert "the array does not say how large its voxels are" in caplog.text


@pytest.mark.parametrize("wrong", ["1,2", "0", "3 parsecs", "{z: 1}"])
def test_a_wrong_spacing_is_an_error_of_the_network_file(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(InvalidInput, match="spacing"):
        load_network(network(tmp_path, wrong))


def test_the_spacing_is_described_and_written_again() -> None:
    net = network_from_text(f"{SMALL_NET}spacing: 5,1.5,0.7mm\n", "net.yaml")
    assert "expects voxels of 5, 1.5, 0.7 millimeter" in describe(net)
    assert net.spacing is not None
    again = network_from_text(f"{SMALL_NET}spacing: {net.spacing.text}\n", "net.yaml")
    assert again.spacing == net.spacing
