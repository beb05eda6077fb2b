"""Independent readers of the files that znni accepts, which check its results."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from command_line import Outcome
from fuzz_cases import SIZE
from numpy.typing import NDArray

from bench.reference import sliding_output
from znni.core.shapes import Vec3
from znni.network.network_file import load_network
from znni.network.node import INPUT
from znni.network.weights import ConvWeights, Weights, load_weights

SEEN = (..., *(slice(extent) for extent in SIZE))  # also for a volume that claims to be larger


def scaled(values: NDArray[Any]) -> NDArray[Any]:
    """Return stored values (z, y, x) or (f, z, y, x) as the network sees them."""
    with np.errstate(all="ignore"):
        return np.float64(np.float32(values.reshape(-1, *values.shape[-3:]))) * 0.01 - 1


def gives(values: NDArray[Any], weights: Weights | None = None, out: str = "out.h5") -> bool:
    """Return whether an output is the network's, for the part of an array that is seen."""
    network = load_network("tiny.yaml")
    with np.errstate(all="ignore"):
        used = weights or load_weights("tiny.npz", network)
        wanted = sliding_output(network, used, scaled(values)).astype(np.float32)
    found = read_output(out)
    return found.shape == wanted.shape and bool(
        np.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    )


def read_output(out: str) -> NDArray[Any]:
    if out.endswith(".zarr"):
        import zarr

        return np.asarray(zarr.open_array(f"{out}/0", mode="r")[...])
    with h5py.File(out) as file:
        return np.asarray(file["main"][()])


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
    """Read a dataset chunk by chunk; HDF5 refuses chunks with an invalid compression level."""
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


# The attribute of a layer for each key of a network file, if it has another name.
ATTRIBUTES = {"features": "out_features", "kind": "reduce"}
EXTENTS = ("kernel", "window", "stride", "dilation", "factor")
COMPARED = (*EXTENTS, "features", "groups", "kind", "mode")


def network_is_as_written(file: str) -> Callable[[Outcome], bool]:
    """Return a function that compares the network with what another YAML reader finds."""
    from ruamel.yaml import YAML

    def agrees(outcome: Outcome) -> bool:
        written = YAML(typ="safe").load(Path(file).read_text(encoding="utf-8"))
        network = load_network(file)
        entries, nodes = written["layers"], network.nodes
        outputs = written.get("outputs") or nodes[-1].name
        outputs = outputs if isinstance(outputs, list) else [outputs]
        if len(outputs) > 1:
            joined, nodes = nodes[-1], nodes[:-1]
            if list(joined.inputs) != outputs:
                return False
        if len(entries) != len(nodes) or written["name"] != network.name:
            return False
        before = INPUT
        for entry, node in zip(entries, nodes, strict=True):
            sources = entry.get("from") or before
            sources = sources if isinstance(sources, list) else [sources]
            if [name or "input" for name in node.inputs] != [name or "input" for name in sources]:
                return False
            fields = entry[node.layer.kind] or {}
            for key in COMPARED:
                found = getattr(node.layer, ATTRIBUTES.get(key, key), None)
                given = fields.get(key)
                three = given if isinstance(given, list) else [given] * 3
                if given is not None and found != (Vec3(*three) if key in EXTENTS else given):
                    return False
            before = node.name
        return network.name in outcome.out

    return agrees


def zarr_gives(_outcome: Outcome) -> bool:
    """Return whether zarr-python's array gives the output, with the axes in the order named."""
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
    """Read a safetensors file without its library."""
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


def imported_reads_back(_outcome: Outcome) -> bool:
    """Return whether the import wrote a network with finite weights.

    The import itself has compared the network with the original.
    """
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


def outcome_agrees(outcome: Outcome) -> bool:
    """Return whether verification succeeded.

    If so, its voxels agree with a second computation.
    """
    return "agree" in outcome.out


def read_by_numpy() -> NDArray[Any]:
    return np.asarray(np.load("volume.npy")[SEEN])


def read_by_nibabel() -> NDArray[Any]:
    import nibabel

    values: Any = nibabel.load("volume.nii").dataobj  # type: ignore[attr-defined]
    z, y, x = SEEN[1:]
    return np.asarray(values[x, y, z]).T


def read_by_tifffile() -> NDArray[Any]:
    import tifffile

    return np.asarray(tifffile.imread("volume.tif")[SEEN])
