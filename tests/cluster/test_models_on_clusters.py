"""Networks of other libraries, and cropped inputs, on clusters: as in a run of one process."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import torch_or_skip

import znni
from znni.cluster.run import infer_on_cluster
from znni.core.shapes import Box, Vec3
from znni.inference.verify import verify
from znni.network.geometry import with_window
from znni.network.input_scaling import InputScaling, ZScore
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network
from znni.network.window import Window
from znni.volumes.locate import open_volume

pytest.importorskip("distributed")
torch = torch_or_skip()
nn = torch.nn
from norm_over_maps import NormOverMaps  # noqa: E402 - it needs PyTorch

WINDOW = Window(Vec3(8, 8, 12), like="nnunet")
SIZE = Vec3(20, 22, 40)
INSIDE = Box(Vec3(4, 3, 7), Vec3(20, 19, 36))
OPTIONS: Any = {"device": "cpu", "costs": "built-in", "ram": "2GiB", "threads": 2}


def exported(file: Path) -> Path:
    """Return the file of a network with random weights, for windows of any size."""
    torch.manual_seed(0)
    axes = {2: "z", 3: "y", 4: "x"}
    with warnings.catch_warnings(action="ignore"):  # of the exporter
        torch.onnx.export(
            NormOverMaps().eval(), (torch.zeros(1, 2, *WINDOW.size),), file, dynamo=False,
            input_names=["in"], output_names=["out"], dynamic_axes={"in": axes, "out": axes},
        )  # fmt: skip
    return file


@pytest.mark.slow
def test_a_cluster_computes_windows_of_an_onnx_model_over_the_part_that_is_not_0(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed (znni[onnx])")
    values = np.zeros((2, *SIZE), np.float32)
    values[:, *INSIDE.slices] = np.random.default_rng(0).random((2, *INSIDE.size), np.float32) + 1
    np.save(tmp_path / "in.npy", values)
    scaling = InputScaling(normalize=(ZScore(),), crop="nonzero")
    network = with_window(load_network(exported(tmp_path / "net.onnx")), WINDOW)
    network = replace(network, scaling=scaling)
    net = tmp_path / "net.yaml"
    net.write_text(network_text(network))
    alone, shared = tmp_path / "alone.zarr", tmp_path / "shared.zarr"
    infer_on_cluster(tmp_path / "in.npy", net, shared, cluster="local:2", **OPTIONS)
    znni.infer(tmp_path / "in.npy", net, alone, **OPTIONS)
    checked = verify(shared, voxels=20, seed=1)
    assert (checked.agrees, checked.how) == (True, "by onnxruntime itself, in float32")
    whole = Box(Vec3(0, 0, 0), SIZE)
    found, expected = (open_volume(str(out)).read(whole) for out in (shared, alone))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.ptp(found[:, *INSIDE.slices]) > 1
    found[:, *INSIDE.slices] = 0
    assert not found.any()
