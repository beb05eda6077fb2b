"""Good cases of the files that znni reads, written into this folder for ``fuzz_kinds``."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import write_case, znni
from graphs import EVERY_KIND
from numpy.typing import NDArray

from bench.library_networks import export
from znni.core.shapes import Vec3
from znni.inference import api
from znni.plans.plan import Plan

SIZE = (3, 8, 11)
ROI = ("--roi", "0:2,2:5,3:7")  # region of the output
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", "--overwrite", *ROI)
MACHINE = """\
host:
  name: some machine
  memory: 16GiB
  threads: 4
  flops: 1.5 Tflop/s
  bandwidth: 100 GB/s
"""


def voxels() -> NDArray[np.uint8]:
    """Return the values of the small volume."""
    return np.random.default_rng(1).integers(0, 200, SIZE).astype(np.uint8)


def small_case() -> None:
    """Write ``tiny.yaml``, its weights in three formats, and a small volume."""
    write_case(Path())
    with h5py.File("volume.h5", "w") as file:
        values = voxels()
        file.create_dataset("raw", data=values, chunks=(2, 8, 8), compression="gzip")
        file["raw"].attrs["note"] = "of a small volume"
    arrays = dict(np.load("tiny.npz"))
    from safetensors.numpy import save_file

    save_file(arrays, "tiny.safetensors")
    with h5py.File("weights.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


def graph_case() -> None:
    """Write ``graph.yaml``, a network with every kind of layer."""
    Path("graph.yaml").write_text(EVERY_KIND)


def plan_case() -> None:
    small_case()
    made = znni("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    assert made.code == 0, made.err


def machine_case() -> None:
    small_case()
    Path("machine.yaml").write_text(MACHINE)


def zarr_case(version: int) -> None:
    import zarr

    small_case()
    root = zarr.create_group("volume.zarr", zarr_format=version)
    values = voxels()
    array = root.create_array("0", shape=SIZE, dtype="uint8", chunks=(2, 8, 8))
    array[...] = values
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [4.0, 1.0, 1.0]}]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}
    if version == 3:
        root.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    else:
        root.attrs["multiscales"] = [{"version": "0.4", **image}]


def onnx_case() -> None:
    from import_cases import onnx_chain

    Path("net.onnx").write_bytes(onnx_chain().SerializeToString())


def onnx_graph_case() -> None:
    from import_cases import onnx_unet

    Path("net.onnx").write_bytes(onnx_unet().SerializeToString())


def torch_case() -> None:
    import torch

    small_case()
    state = {name: torch.from_numpy(array) for name, array in np.load("tiny.npz").items()}
    torch.save(state, "net.pt")
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)


def program_case() -> None:
    import torch
    from import_cases import sequential

    program = torch.export.export(sequential()[:4].eval(), (torch.zeros(1, 2, 2, 4, 5),))
    torch.export.save(program, "net.pt2")


def program_graph_case() -> None:
    import torch
    from import_cases import unet

    free = dict.fromkeys((2, 3, 4), torch.export.Dim.AUTO)
    inputs = (torch.zeros(1, 1, 4, 6, 8),)
    torch.export.save(torch.export.export(unet(), inputs, dynamic_shapes=(free,)), "net.pt2")


def norms_case(file: str) -> None:
    """Write a file with depthwise layers, both kinds of norms, GELU and layer scale."""
    from norm_networks import MAPS, convnext, varied
    from torch import nn

    halves = nn.Conv3d(MAPS, MAPS, 3, stride=2, padding=1, groups=MAPS)
    doubles = nn.ConvTranspose3d(MAPS, MAPS, 2, stride=2, groups=MAPS)
    module = varied(nn.Sequential(convnext(response=True), halves, doubles))
    export(module, Vec3(4, 6, 8), Path(file))


def output_case() -> None:
    small_case()
    made = znni(*INFER)
    assert made.code == 0, made.err


def zarr_output_case() -> None:
    small_case()
    made = znni(*INFER[:5], "out.zarr", *ROI)
    assert made.code == 0, made.err


def unfinished_case(out: str) -> None:
    """Write an output with the first of two blocks, and the ledger that lists it."""
    small_case()

    def stop(_done: int, _all: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        api.infer("volume.h5", "tiny.yaml", out, plan=two_blocks(), progress=stop)
    assert Path(f"{out}.partial.ledger").exists()


def two_blocks() -> Plan:
    """Return a plan that takes two patches for the small volume."""
    return api.plan("tiny.yaml", (SIZE[0] - 1, *SIZE[1:]), threads=1, input_itemsize=1)


def numpy_case() -> None:
    small_case()
    np.save("volume.npy", voxels())


def nifti_case() -> None:
    import nibabel

    small_case()
    nibabel.save(nibabel.Nifti1Image(voxels().T, np.diag([1, 1, 4, 1])), "volume.nii")


def tiff_case() -> None:
    import tifffile

    small_case()
    tifffile.imwrite("volume.tif", voxels(), photometric="minisblack")


def znn_case() -> None:
    from import_cases import write_znn, znn_fields

    write_znn(Path("net.h5"), znn_fields(), "processing/znn/train/network")
