"""The networks that come with znni are found by name."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command_line import refused, succeeds, write_case
from paths import ROOT

from znni.core.errors import InvalidInput
from znni.core.shipped import NETWORKS
from znni.network.network_file import load_network

NAMES = ["boundaries", "cells-unet", "n337", "n537", "n726", "n926"]

pytestmark = pytest.mark.usefixtures("own_folder")


def test_all_are_found_by_name() -> None:
    assert NETWORKS.names == NAMES
    for name in NAMES:
        network = load_network(name)
        assert network == load_network(ROOT / "networks" / f"{name}.yaml")
        assert network == load_network(f"{name}.yaml")
        assert network.about
        assert network.weights is None or network.weights.is_file()


def test_the_wheel_has_all_their_files_and_those_of_machines() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]["force-include"]
    kinds = (".yaml", ".safetensors")
    there = {path.name for path in (ROOT / "networks").iterdir() if path.suffix in kinds}
    expected = {f"networks/{name}": f"znni/shipped/networks/{name}" for name in there}
    assert wheel == {**expected, "machines": "znni/shipped/machines"}
    assert wheel.keys() <= set(build["targets"]["sdist"]["only-include"])


def test_they_are_listed() -> None:
    said = succeeds("networks")
    assert [line.split(":")[0] for line in said.splitlines() if line[0] != " "] == NAMES
    assert "cells-unet: 1 map in, 1 out, trained\n" in said
    assert "n537: 1 map in, 3 out, trained\n" in said
    assert "n726: 1 map in, 3 out, a benchmark without weights: give --random-weights 0\n" in said
    assert "expects grey levels 0 to 255 with dark membranes; give --invert" in said
    assert "/cells-unet.png" in said


def test_info_says_what_a_network_expects() -> None:
    said = succeeds("info", "boundaries")
    assert "  expects grey levels 0 to 255 with dark membranes" in said
    assert "expects" not in succeeds("info", "n726")


def test_a_file_of_that_name_comes_first() -> None:
    write_case(Path())
    for name in ("n337", "n337.yaml"):
        shutil.copy("tiny.yaml", name)
        assert load_network(name).name == "tiny"
    assert NETWORKS.file("tiny") is NETWORKS.file("tiny.yaml") is None


def test_names_that_there_are_not() -> None:
    for name in ("none", "none.yaml"):
        said = refused("infer", "v.h5", "--net", name)
        assert said.startswith(f"{name}: no such network file, and no network of this name comes ")
        assert said.endswith("there are " + ", ".join(NAMES))
    for name in ("N377", "n377.yaml"):
        with pytest.raises(
            InvalidInput, match=r"did you mean n337\? There are boundaries, cells-u"
        ):
            load_network(name)
    Path("mine.yaml").touch()
    with pytest.raises(InvalidInput, match=r"did you mean mine\.yaml\? There are boundaries"):
        load_network("mime.yaml")
    with pytest.raises(InvalidInput, match=r"no such network file; did you mean .*n337\.yaml\?"):
        load_network(ROOT / "networks" / "n377.yaml")


def test_missing_weights_are_looked_for_somewhere() -> None:
    write_case(Path())
    np.save("large.npy", np.zeros((120, 120, 120), np.uint8))
    said = refused("infer", "large.npy", "--net", "n726.yaml")
    assert said.startswith("network n726 names no weights (A benchmark of ZNNi (SC'16) without wei")
    assert said.endswith("; give --weights FILE or, to try the network out, --random-weights 0")
    place = Path("tiny.npz").absolute()
    Path("tiny.npz").unlink()
    said = refused("infer", "volume.h5", "--net", "tiny.yaml")
    assert said.startswith(f"network tiny names the weights tiny.npz, and there is no {place}; put")
    said = refused("infer", "volume.h5", "--net", "tiny.yaml", "--weights", "w.npz")
    assert f"w.npz: no such weights file, looked for at {place.parent}/w.npz" in said
