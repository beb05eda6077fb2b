"""Kinds of files that znni reads: a good one of each, what is done with it, and what it must give.

A file that is taken must give what an independent reading of it gives; anything else is refused
by one clear error.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutations
import h5py
import numpy as np
from command_line import Outcome, write_case, znni
from numpy.typing import NDArray

from znni.network import Conv
from znni.network_file import load_network
from znni.primitives.reference import dense
from znni.weights import ConvWeights, Weights, load_weights

SIZE = (3, 8, 11)
SEEN = (..., *(slice(extent) for extent in SIZE))  # even where a volume says that it is larger
ROI = ("--roi", "0:2,2:5,3:7")  # the output of that
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", "--overwrite", *ROI)
MACHINE = """\
host:
  name: some machine
  memory: 16GiB
  threads: 4
  flops: 1.5 Tflop/s
  bandwidth: 100 GB/s
"""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        make: writes a good case into this folder.
        files: those of it that are changed, one at a time.
        mutate: changes one.
        command: what is done with it.
        right: whether what a command that succeeded has left is right.
        share: of the inputs, in parts of ten thousand.
        needs: modules that have to be installed.
    """

    make: Callable[[], None]
    files: tuple[str, ...]
    mutate: Callable[[Random, bytes], bytes]
    command: tuple[str, ...]
    right: Callable[[Outcome], bool]
    share: int
    needs: tuple[str, ...] = ()

    def run(self) -> Outcome:
        """Run the command in this folder."""
        return znni(*self.command)


def small_case() -> None:
    """``tiny.yaml``, its weights in three formats and a small volume."""
    write_case(Path())
    with h5py.File("volume.h5", "w") as file:
        values = np.random.default_rng(1).integers(0, 200, SIZE).astype(np.uint8)
        file.create_dataset("raw", data=values, chunks=(2, 8, 8), compression="gzip")
        file["raw"].attrs["note"] = "of a small volume"
    arrays = dict(np.load("tiny.npz"))
    from safetensors.numpy import save_file

    save_file(arrays, "tiny.safetensors")
    with h5py.File("weights.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


def scaled(values: NDArray[Any]) -> NDArray[Any]:
    """Stored values (z, y, x) or (f, z, y, x) as the network sees them."""
    with np.errstate(all="ignore"):
        return np.float64(np.float32(values.reshape(-1, *values.shape[-3:]))) * 0.01 - 1


def gives(values: NDArray[Any], weights: Weights | None = None) -> bool:
    """Whether ``out.h5`` is what the network gives for the part of an array that is seen."""
    network = load_network("tiny.yaml")
    with np.errstate(all="ignore"):
        used = weights or load_weights("tiny.npz", network)
        wanted = dense(network, used, scaled(values)).astype(np.float32)
    with h5py.File("out.h5") as file:
        found = file["main"][()]
    return found.shape == wanted.shape and bool(
        np.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    )


def read_by_h5py(name: str = "volume.h5") -> NDArray[Any]:
    found: list[h5py.Dataset] = []
    with h5py.File(name) as file:
        file.visititems(lambda _name, item: found.append(item) if hasattr(item, "shape") else None)
        (dataset,) = (d for d in found if len(d.shape or ()) in (3, 4))
        try:
            return np.asarray(dataset[SEEN])
        except OSError:
            return unpacked(dataset)[SEEN]


def unpacked(dataset: h5py.Dataset) -> NDArray[Any]:
    """A dataset chunk by chunk: HDF5 unpacks none where a level of compression is not one."""
    values = np.zeros(dataset.shape, dataset.dtype)
    for index in range(dataset.id.get_num_chunks()):
        start = dataset.id.get_chunk_info(index).chunk_offset
        _, packed = dataset.id.read_direct_chunk(start)
        chunk = np.frombuffer(zlib.decompress(packed), dataset.dtype).reshape(dataset.chunks)
        within = [
            min(n, end - a) for a, n, end in zip(start, chunk.shape, values.shape, strict=True)
        ]
        place = tuple(slice(a, a + n) for a, n in zip(start, within, strict=True))
        values[place] = chunk[tuple(map(slice, within))]
    return values


def network_is_as_written(outcome: Outcome) -> bool:
    """A second reader of YAML finds the same layers."""
    from ruamel.yaml import YAML

    written = YAML(typ="safe").load(Path("tiny.yaml").read_text(encoding="utf-8"))
    network = load_network("tiny.yaml")
    entries = written["layers"]
    if len(entries) != len(network.layers) or written["name"] != network.name:
        return False
    for entry, layer in zip(entries, network.layers, strict=True):
        fields = entry["conv"] if isinstance(layer, Conv) else entry["pool"]
        extents = layer.kernel if isinstance(layer, Conv) else layer.window
        given = fields["kernel" if isinstance(layer, Conv) else "window"]
        if list(extents) != (given if isinstance(given, list) else [given] * 3):
            return False
        if isinstance(layer, Conv) and layer.out_features != fields["features"]:
            return False
    return network.name in outcome.out


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
    values = np.random.default_rng(1).integers(0, 200, SIZE).astype(np.uint8)
    array = root.create_array("0", shape=SIZE, dtype="uint8", chunks=(2, 8, 8))
    array[...] = values
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [4.0, 1.0, 1.0]}]
    image = {"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": scale}]}
    if version == 3:
        root.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    else:
        root.attrs["multiscales"] = [{"version": "0.4", **image}]


def zarr_gives(_outcome: Outcome) -> bool:
    """The array that zarr-python reads gives the output, in the order that its axes are named."""
    import zarr

    root = zarr.open("volume.zarr", mode="r")
    images = root.attrs.get("ome", root.attrs).get("multiscales")
    path, names = "0", "zyx"
    if images:
        path = images[0]["datasets"][0]["path"]
        axes = images[0].get("axes") or "zyx"
        names = "".join(axis if isinstance(axis, str) else axis["name"] for axis in axes)
    array = root[path] if path in root else next(a for _, a in root.arrays())
    places = dict(zip("zyx", SEEN[1:], strict=True))
    values = array[tuple(places.get(name, slice(None)) for name in names)]
    kept = [name for name in "czyx" if name in names]
    values = values.transpose([names.index(name) for name in kept])
    absent = [
        axis for axis, name in enumerate("zyx", start=1 if "c" in kept else 0) if name not in kept
    ]
    return gives(np.expand_dims(values, tuple(absent)))


def weights_by_hand(arrays: dict[str, NDArray[Any]]) -> Weights:
    network = load_network("tiny.yaml")
    made = {
        conv.name: ConvWeights(
            arrays[f"{conv.name}.weight"].astype(np.float32),
            arrays[f"{conv.name}.bias"].astype(np.float32),
        )
        for conv in network.convolutions
    }
    return Weights(made, "by hand")


def of_safetensors(name: str) -> dict[str, NDArray[Any]]:
    """A file of safetensors, read without its library."""
    data = Path(name).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    arrays = {}
    for key, entry in header.items():
        if key != "__metadata__":
            start, stop = entry["data_offsets"]
            raw = data[8 + length + start : 8 + length + stop]
            arrays[key] = np.frombuffer(raw, kinds[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def of_hdf5_weights() -> dict[str, NDArray[Any]]:
    with h5py.File("weights.h5") as file:
        return {name: file[name][()] for name in file}


def volume() -> NDArray[Any]:
    return read_by_h5py()


def onnx_case() -> None:
    from import_cases import onnx_chain

    Path("net.onnx").write_bytes(onnx_chain().SerializeToString())


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


def imported_reads_back(_outcome: Outcome) -> bool:
    """What was written is a network with finite weights; the import has compared it."""
    network = load_network("imported.yaml")
    assert network.weights
    return load_weights(network.weights, network).nbytes > 0


def imported_is_what_torch_reads(name: str) -> Callable[[Outcome], bool]:
    def right(outcome: Outcome) -> bool:
        import torch

        held = torch.load(name, weights_only=True)
        network = load_network("imported.yaml")
        assert network.weights
        found = load_weights(network.weights, network)
        tensors = [t for t in held.values() if isinstance(t, torch.Tensor) and t.ndim in (1, 5)]
        kept = [a for w in found.layers.values() for a in (w.weight, w.bias)]
        stored = {t.to(torch.float32).numpy().tobytes() for t in tensors}
        return imported_reads_back(outcome) and all(
            array.tobytes() in stored or not array.any() for array in kept
        )

    return right


def output_case() -> None:
    small_case()
    made = znni(*INFER)
    assert made.code == 0, made.err


def outcome_agrees(outcome: Outcome) -> bool:
    """Verified: then the voxels that were looked at are right, by a second computation."""
    return "agree" in outcome.out


IMPORT = ("--out", "imported.yaml", "--overwrite")
LIKE = ("--like", "tiny.yaml")

KINDS: dict[str, Kind] = {
    "network (YAML)": Kind(
        small_case,
        ("tiny.yaml",),
        fuzz_mutations.of_text,
        ("info", "tiny.yaml"),
        network_is_as_written,
        1500,
    ),
    "machine (YAML)": Kind(
        machine_case,
        ("machine.yaml",),
        fuzz_mutations.of_text,
        ("plan", "--net", "tiny.yaml", "--volume", "7,20,23", "--machine", "machine.yaml"),
        lambda outcome: "patch" in outcome.out,
        500,
    ),
    "plan (JSON)": Kind(
        plan_case,
        ("plan.json",),
        fuzz_mutations.of_json,
        (*INFER, "--plan", "plan.json"),
        lambda _outcome: gives(volume()),
        1500,
    ),
    "volume (HDF5)": Kind(
        small_case,
        ("volume.h5",),
        fuzz_mutations.of_bytes,
        INFER,
        lambda _outcome: gives(volume()),
        1500,
    ),
    "output (HDF5)": Kind(
        output_case,
        ("out.h5",),
        fuzz_mutations.of_bytes,
        ("verify", "out.h5", "--voxels", "2", "--seed", "1"),
        outcome_agrees,
        500,
    ),
    "volume (OME-Zarr 0.5)": Kind(
        lambda: zarr_case(3),
        ("volume.zarr/zarr.json", "volume.zarr/0/zarr.json"),
        fuzz_mutations.of_json,
        ("infer", "volume.zarr", *INFER[2:]),
        zarr_gives,
        1000,
        ("zarr",),
    ),
    "volume (OME-Zarr 0.4)": Kind(
        lambda: zarr_case(2),
        ("volume.zarr/.zattrs", "volume.zarr/0/.zarray"),
        fuzz_mutations.of_json,
        ("infer", "volume.zarr", *INFER[2:]),
        zarr_gives,
        500,
        ("zarr",),
    ),
    "weights (safetensors)": Kind(
        small_case,
        ("tiny.safetensors",),
        fuzz_mutations.of_safetensors,
        (*INFER, "--weights", "tiny.safetensors"),
        lambda _outcome: gives(volume(), weights_by_hand(of_safetensors("tiny.safetensors"))),
        700,
    ),
    "weights (npz)": Kind(
        small_case,
        ("tiny.npz",),
        fuzz_mutations.of_archive,
        INFER,
        lambda _outcome: gives(volume(), weights_by_hand(dict(np.load("tiny.npz")))),
        200,
    ),
    "weights (HDF5)": Kind(
        small_case,
        ("weights.h5",),
        fuzz_mutations.of_bytes,
        (*INFER, "--weights", "weights.h5"),
        lambda _outcome: gives(volume(), weights_by_hand(of_hdf5_weights())),
        300,
    ),
    "state dict (safetensors)": Kind(
        small_case,
        ("tiny.safetensors",),
        fuzz_mutations.of_safetensors,
        ("import", "tiny.safetensors", *IMPORT, *LIKE),
        imported_reads_back,
        300,
    ),
    "network (ONNX)": Kind(
        onnx_case,
        ("net.onnx",),
        fuzz_mutations.of_protocol_buffer,
        ("import", "net.onnx", *IMPORT),
        imported_reads_back,
        1000,
        ("onnx", "onnxruntime"),
    ),
    "state dict (PyTorch)": Kind(
        torch_case,
        ("net.pt",),
        fuzz_mutations.of_archive,
        ("import", "net.pt", *IMPORT, *LIKE),
        imported_is_what_torch_reads("net.pt"),
        600,
        ("torch",),
    ),
    "state dict (PyTorch, before 1.6)": Kind(
        torch_case,
        ("old.pt",),
        fuzz_mutations.of_bytes,
        ("import", "old.pt", *IMPORT, *LIKE),
        imported_is_what_torch_reads("old.pt"),
        200,
        ("torch",),
    ),
    "exported program (PyTorch)": Kind(
        program_case,
        ("net.pt2",),
        fuzz_mutations.of_archive,
        ("import", "net.pt2", *IMPORT),
        imported_reads_back,
        200,
        ("torch",),
    ),
}


def restore(pristine: Path, folder: Path) -> None:
    """Bring a folder back to the good case."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(pristine, folder, dirs_exist_ok=True)
