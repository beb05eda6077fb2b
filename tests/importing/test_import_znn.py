"""ZNN's HDF5 files, compared with true convolutions computed by SciPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import (
    ZNN_BIASES,
    ZNN_FILTERS,
    numbers,
    pooled,
    read_back,
    refusal,
    relative,
    write_znn,
    znn_fields,
)

import znni


def as_znn_computes(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the output of ``znn_fields``; filters are (in, out, z, y, x), and flipped."""
    from scipy.signal import convolve  # its import takes a second, here of one worker alone

    def nodes(maps: np.ndarray[Any, Any], edge: str, node: str) -> np.ndarray[Any, Any]:
        filters = ZNN_FILTERS[edge].astype(np.float64)
        return np.array(
            [
                sum(
                    convolve(maps[i], filters[i, o], mode="valid", method="direct")
                    for i in range(len(maps))
                )
                + ZNN_BIASES[node][o]
                for o in range(filters.shape[1])
            ]
        )

    y = 1.7159 * np.tanh(0.6666 * nodes(x.astype(np.float64), "conv1", "nconv1"))
    y = np.maximum(y[:, :, ::2, :], y[:, :, 1::2, :])
    y = np.maximum(y[:, :, :, ::2], y[:, :, :, 1::2])
    return nodes(y, "conv2", "output")


@pytest.mark.parametrize("top", ["processing/znn/train/network", ""])
def test_a_network_that_znn_trained(top: str, tmp_path: Path) -> None:
    file = write_znn(tmp_path / "net_current.h5", znn_fields(), top)
    found = znni.import_network(file, tmp_path / "net.yaml")
    assert "not compared: ZNN itself, which would run it, is not here" in str(found)
    x = numbers(1, 4, 8, 11)  # so that each axis ends with a whole window
    assert relative(pooled(read_back(tmp_path / "net.yaml"), x), as_znn_computes(x)) < 1e-6
    text = (tmp_path / "net.yaml").read_text()
    assert "activation: tanh}  # conv1 (conv), nconv1 (transfer)" in text
    assert text.count("conv:") == 2


def test_functions_and_edges_that_do_nothing(tmp_path: Path) -> None:
    fields = znn_fields()
    fields["nconv1"]["function"] = "rectify_linear"
    fields["output"] |= {"function": "logistics", "function_args": ""}
    fields["drop"] = {
        "group_type": "edge",
        "type": "dropout",
        "ratio": "0.5",
        "input": "npool1",
        "output": "ndrop",
    }
    fields["ndrop"] = fields["npool1"]
    fields["conv2"]["input"] = "ndrop"
    fields["pool1"]["type"] = "max_pool"
    found = znni.import_network(write_znn(tmp_path / "n.h5", fields), tmp_path / "net.yaml")
    activations = [conv.activation for conv in found.network.convolutions]
    assert activations == ["relu", "sigmoid"]


@pytest.mark.parametrize(
    ("group", "changes", "named"),
    [
        ("conv1", {"stride": (1, 2, 2)}, "conv1 (conv) has stride [1, 2, 2]"),
        ("conv1", {"size": (4, 3, 2)}, "conv1 (conv) has size [4, 3, 2] and filters of"),
        ("conv1", {"filters": numbers(3, 2, 3, 4)}, "conv1 (conv) has filters of shape"),
        ("conv1", {"type": "scale"}, "conv1 (scale) cannot be represented"),
        ("conv1", {"input": "nowhere"}, "'nowhere' for its input, which is no node"),
        (
            "pool1",
            {"stride": (1, 1, 1)},
            "pool1 (max_filter) pools [1, 2, 2] with stride [1, 1, 1]",
        ),
        ("output", {"function": "soft_sign"}, "output (transfer) has the function 'soft_sign'"),
        ("output", {"function_args": "1,2,3"}, "has arguments '1,2,3' of its function"),
        (
            "output",
            {"biases": numbers(3)},
            "output (transfer) takes 3 maps, but the layer before it gives 2",
        ),
        ("input", {"type": "sum"}, "has inputs [] and outputs ['output']"),
        ("nconv1", {"type": "concat"}, "nconv1 (concat) cannot be represented"),
    ],
)
def test_a_network_that_cannot_be_represented(
    group: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    fields = znn_fields()
    fields[group] |= changes
    assert named in refusal(write_znn(tmp_path / "n.h5", fields), tmp_path)


def test_branches_are_refused(tmp_path: Path) -> None:
    fields = znn_fields()
    fields["side"] = fields["conv2"] | {"output": "other"}
    fields["other"] = fields["output"]
    said = refusal(write_znn(tmp_path / "n.h5", fields), tmp_path)
    assert "inputs ['input'] and outputs ['other', 'output']" in said
    fields = znn_fields()
    fields["side"] = dict(fields["conv1"])
    said = refusal(write_znn(tmp_path / "n.h5", fields), tmp_path)
    assert "conv1 (conv) and side (conv) both give 'nconv1'" in said


def test_other_hdf5_files_are_told_apart(tmp_path: Path) -> None:
    write_znn(tmp_path / "n.h5", {"raw": {"data": numbers(3, 4, 5)}})
    assert "has no network of ZNN" in refusal(tmp_path / "n.h5", tmp_path)
    (tmp_path / "n.h5").write_bytes(b"no HDF5")
    assert "cannot be read as HDF5" in refusal(tmp_path / "n.h5", tmp_path)
