"""Kinds of files that znni reads: a good file of each, its command, and the right result.

If znni accepts a file, its result must equal that of an independent reader. Otherwise znni must
refuse the file with one clear error.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import fuzz_mutations
import numpy as np
from command_line import Outcome, znni
from fuzz_cases import (
    INFER,
    graph_case,
    machine_case,
    nifti_case,
    norms_case,
    numpy_case,
    onnx_case,
    onnx_graph_case,
    output_case,
    plan_case,
    program_case,
    program_graph_case,
    small_case,
    tiff_case,
    torch_case,
    unfinished_case,
    zarr_case,
    zarr_output_case,
    znn_case,
)
from fuzz_readers import (
    gives,
    imported_is_what_torch_reads,
    imported_reads_back,
    network_is_as_written,
    of_hdf5_weights,
    of_safetensors,
    outcome_agrees,
    read_by_h5py,
    read_by_nibabel,
    read_by_numpy,
    read_by_tifffile,
    weights_by_hand,
    zarr_gives,
)


@dataclass(frozen=True)
class Kind:
    """Kind of file.

    Attributes:
        make: function that writes a good case into this folder.
        files: files of the case that are changed, one at a time.
        mutate: function that changes the bytes of a file.
        command: arguments of the command that reads the files.
        right: function that checks the result of a command that succeeded.
        share: share of the inputs, in parts of ten thousand.
        needs: modules that must be installed.
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


GO_ON = tuple(part for part in INFER if part != "--overwrite")


def importing(
    file: str,
    make: Callable[[], None],
    mutate: Callable[[Random, bytes], bytes],
    share: int,
    *needs: str,
    like: bool = False,
    right: Callable[[Outcome], bool] = imported_reads_back,
) -> Kind:
    """Return the kind of a file that is imported."""
    command = ("import", file, "--out", "imported.yaml", "--overwrite")
    options = ("--like", "tiny.yaml") if like else ()
    return Kind(make, (file,), mutate, (*command, *options), right, share, needs)


KINDS: dict[str, Kind] = {
    "network (YAML)": Kind(
        small_case,
        ("tiny.yaml",),
        fuzz_mutations.of_text,
        ("info", "tiny.yaml"),
        network_is_as_written("tiny.yaml"),
        1000,
    ),
    "network with a graph (YAML)": Kind(
        graph_case,
        ("graph.yaml",),
        fuzz_mutations.of_text,
        ("info", "graph.yaml"),
        network_is_as_written("graph.yaml"),
        500,
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
        lambda _outcome: gives(read_by_h5py()),
        1500,
    ),
    "volume (HDF5)": Kind(
        small_case,
        ("volume.h5",),
        fuzz_mutations.of_bytes,
        INFER,
        lambda _outcome: gives(read_by_h5py()),
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
        lambda _outcome: gives(read_by_h5py(), weights_by_hand(of_safetensors("tiny.safetensors"))),
        700,
    ),
    "weights (npz)": Kind(
        small_case,
        ("tiny.npz",),
        fuzz_mutations.of_archive,
        INFER,
        lambda _outcome: gives(read_by_h5py(), weights_by_hand(dict(np.load("tiny.npz")))),
        200,
    ),
    "weights (HDF5)": Kind(
        small_case,
        ("weights.h5",),
        fuzz_mutations.of_bytes,
        (*INFER, "--weights", "weights.h5"),
        lambda _outcome: gives(read_by_h5py(), weights_by_hand(of_hdf5_weights())),
        300,
    ),
    "state dict (safetensors)": importing(
        "tiny.safetensors", small_case, fuzz_mutations.of_safetensors, 300, like=True
    ),
    "network (ONNX)": importing(
        "net.onnx", onnx_case, fuzz_mutations.of_protocol_buffer, 500, "onnx"
    ),
    "graph (ONNX)": importing(
        "net.onnx", onnx_graph_case, fuzz_mutations.of_protocol_buffer, 500, "onnx"
    ),
    "state dict (PyTorch)": importing(
        "net.pt",
        torch_case,
        fuzz_mutations.of_archive,
        300,
        "torch",
        like=True,
        right=imported_is_what_torch_reads("net.pt"),
    ),
    "state dict (PyTorch, before 1.6)": importing(
        "old.pt",
        torch_case,
        fuzz_mutations.of_bytes,
        200,
        "torch",
        like=True,
        right=imported_is_what_torch_reads("old.pt"),
    ),
    "exported program (PyTorch)": importing(
        "net.pt2", program_case, fuzz_mutations.of_archive, 200, "torch"
    ),
    "exported graph (PyTorch)": importing(
        "net.pt2", program_graph_case, fuzz_mutations.of_archive, 300, "torch"
    ),
    "graph with norms (ONNX)": importing(
        "net.onnx",
        lambda: norms_case("net.onnx"),
        fuzz_mutations.of_protocol_buffer,
        300,
        "onnx",
        "torch",
    ),
    "exported graph with norms (PyTorch)": importing(
        "net.pt2", lambda: norms_case("net.pt2"), fuzz_mutations.of_archive, 300, "torch"
    ),
    "output (OME-Zarr)": Kind(
        zarr_output_case,
        ("out.zarr/zarr.json", "out.zarr/0/zarr.json"),
        fuzz_mutations.of_json,
        ("verify", "out.zarr", "--voxels", "2", "--seed", "1"),
        outcome_agrees,
        500,
        ("zarr",),
    ),
    "unfinished output (HDF5, ledger)": Kind(
        lambda: unfinished_case("out.h5"),
        ("out.h5.partial", "out.h5.partial.ledger"),
        fuzz_mutations.of_bytes,
        GO_ON,
        lambda _outcome: gives(read_by_h5py()),
        500,
    ),
    "unfinished output (OME-Zarr)": Kind(
        lambda: unfinished_case("out.zarr"),
        ("out.zarr.partial/0/zarr.json",),
        fuzz_mutations.of_json,
        tuple("out.zarr" if part == "out.h5" else part for part in GO_ON),
        lambda _outcome: gives(read_by_h5py(), out="out.zarr"),
        500,
        ("zarr",),
    ),
    "volume (NumPy)": Kind(
        numpy_case,
        ("volume.npy",),
        fuzz_mutations.of_bytes,
        ("infer", "volume.npy", *INFER[2:]),
        lambda _outcome: gives(read_by_numpy()),
        300,
    ),
    "volume (NIfTI)": Kind(
        nifti_case,
        ("volume.nii",),
        fuzz_mutations.of_bytes,
        ("infer", "volume.nii", *INFER[2:]),
        lambda _outcome: gives(read_by_nibabel()),
        300,
        ("nibabel",),
    ),
    "volume (TIFF)": Kind(
        tiff_case,
        ("volume.tif",),
        fuzz_mutations.of_bytes,
        ("infer", "volume.tif", *INFER[2:]),
        lambda _outcome: gives(read_by_tifffile()),
        300,
        ("tifffile",),
    ),
    "network (ZNN, HDF5)": importing("net.h5", znn_case, fuzz_mutations.of_bytes, 300),
}


def restore(pristine: Path, folder: Path) -> None:
    """Restore the good case in a folder."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(pristine, folder, dirs_exist_ok=True)
