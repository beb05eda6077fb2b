"""Converting networks of PyTorch, ONNX, nnU-Net, MONAI, bioimage.io and ZNN to network files.

Each source has a module that reads it as a graph of ``steps``; ``folding`` folds those into layers,
``network_writer`` writes them, and ``parity`` compares them with the original.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.core.shapes import ONE
from znni.importing.axis_order import AXES, order_of, reordered
from znni.importing.bioimageio_files import is_package
from znni.importing.bioimageio_model import read_model
from znni.importing.checks import NotExpressed
from znni.importing.exported_program import of_live_program, read_exported_program
from znni.importing.folding import Folded, fold
from znni.importing.monai_bundle import is_bundle, read_bundle
from znni.importing.network_writer import check_writable, weights_beside, write_network
from znni.importing.nnunet_folder import Results, is_results
from znni.importing.nnunet_results import read_results
from znni.importing.onnx_graph import read_onnx
from znni.importing.own_library import own_library_advice
from znni.importing.parity import Compute, Parity, compare, compare_sample
from znni.importing.pytorch_3dunet import SUFFIX, read_3dunet
from znni.importing.state_dict import fill, read_safetensors
from znni.importing.steps import Found, Original, Settings
from znni.importing.torch_checkpoint import arrays_of, read_checkpoint
from znni.importing.torch_module import read_module
from znni.importing.znn_hdf5 import read_znn
from znni.network.geometry import with_window
from znni.network.input_scaling import AS_STORED
from znni.network.layer_geometry import NO_PADDING
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights

PICKLES = (".pt", ".pth", ".ckpt", ".bin", SUFFIX)  # state dicts of torch.save
READERS: Mapping[str, Callable[[Path], Found]] = {
    ".pt2": read_exported_program,
    ".onnx": read_onnx,
    ".h5": read_znn,
    ".hdf5": read_znn,
}
KINDS = (
    ".pt, .pth, .safetensors (state dicts), .pytorch (pytorch-3dunet), .pt2 (exported programs), "
    ".onnx, .h5 (ZNN), .zip or rdf.yaml (bioimage.io), or a folder of nnU-Net's results, a MONAI "
    "bundle or a bioimage.io package"
)
WITHOUT_CROP = (
    "the original crops values by more samples than it needs to join them. This crop is left out, "
    "so the output has more voxels at the edges of a volume"
)
SLIDES = (
    "the original gives an output for every {stride} voxels. Here the network slides: strides "
    "became dilations, so every voxel has an output"
)


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        network: network as ``znni.load_network`` reads it from its file.
        path: path of the network file.
        parity: difference from the original, or the reason why it is unknown.
        notes: assumptions made while reading the source.
        sample: difference from the source's own example, or the reason why it is unknown. None: it
            has none.
        axes: the order of the axes that the original takes, as the caller gave it.
    """

    network: Network
    path: Path
    parity: Parity | str
    notes: tuple[str, ...]
    sample: Parity | str | None = None
    axes: str = AXES

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.network}", f"{weights_beside(self.path)}: its weights"]
        lines += [f"note: {note}" for note in self.notes]
        for compared in filter(None, (self.parity, self.sample)):
            lines.append(f"{'not compared: ' * isinstance(compared, str)}{compared}")
        if (layer := self.network.window_layer) and not self.network.window:
            lines.append(
                f"layer {layer} depends on whole windows: give the extents that it was trained on "
                f"as window: in {self.path.name}, or by znni.with_window (--window Z,Y,X "
                f"of znni infer)"
            )
        case = self.network.case
        if self.network.scaling == AS_STORED and not (case and case.values):
            lines.append(
                f"it takes voxels as they are stored: if it was trained on scaled ones, add to "
                f"{self.path.name} input: {{scale: 0.00392157}}, or input: {{normalize: zscore}}"
            )
            if self.axes == AXES and isinstance(self.parity, Parity) and self.sample is None:
                lines.append(
                    f"its axes are z, y, x: if it was trained on x, y, z, as nibabel and MONAI "
                    f"read NIfTI, import it with {option('axes', 'xyz')}"
                )
        return "\n".join(lines)


def convert(
    source: Any,
    out: str | Path,
    *,
    like: Network | str | Path | None = None,
    axes: str = AXES,
    overwrite: bool = False,
    compute: Compute,
) -> Imported:
    """Convert a network of another library to a network file with its weights beside it.

    Args:
        source: an object or file, as ``znni.import_network`` takes it.
        out: network file to write, ``NAME.yaml``; the weights go to ``NAME.safetensors``.
        like: network (or its file) with the same layers; only for a state dict.
        axes: the order of the axes that the original takes.
        overwrite: replace an existing network.
        compute: function that runs the imported network, to compare it with the original.

    Returns:
        The written network, and how it compares with the original.

    Raises:
        InvalidInput: the source cannot be read, or the network cannot be written.
        RunFailed: the network differs from the original; nothing is written.
    """
    out = Path(out)
    check_writable(out, source, overwrite=overwrite)
    template = load_network(like) if isinstance(like, str | Path) else like
    name = template.name if template else out.stem
    folded, parity, sample, notes = _made(source, template, name, compute, axes)
    write_network(out, folded, _named(source))
    return Imported(load_network(out), out, parity, notes, sample, axes)


def network_of(source: Any, compute: Compute) -> tuple[Network, Weights]:
    """Return the network and weights of a source that says how its layers are connected.

    Args:
        source: as ``convert`` takes it, but no state dict.
        compute: function that runs the imported network, to compare it with the original.

    Raises:
        InvalidInput: the source cannot be read.
        RunFailed: the network differs from the original.
    """
    folded, *_ = _made(source, None, _named(source), compute)
    return folded.network, folded.weights


def _named(source: object) -> str:
    if isinstance(source, Results):
        return str(source.path)
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def _made(
    source: Any, like: Network | None, name: str, compute: Compute, axes: str = AXES
) -> tuple[Folded, Parity | str, Parity | str | None, tuple[str, ...]]:
    """Return a source as a network, its comparisons with the original, and the assumptions made."""
    try:
        contents = _found(source, like)
        if like:
            contents = replace(contents, settings=_completed(contents.settings, like))
        contents = _in_axes(contents, axes)
        settings = contents.settings
        folded = fold(name, contents.graph, "its weights", settings.scaling)
        folded = replace(folded, network=_with(folded.network, settings))
    except NotExpressed as error:
        said = f"{_named(source)}: {own_library_advice(source)}{error.why}"
        raise NotExpressed(said, error.why) from error.__cause__
    except InvalidInput as error:
        raise InvalidInput(f"{_named(source)}: {error}") from error.__cause__
    original, notes = contents.original, contents.notes
    if contents.graph.margin != NO_PADDING:
        notes = (*notes, WITHOUT_CROP)
    if folded.stride != ONE:
        notes = (*notes, SLIDES.format(stride=folded.stride))
    parity = compare(folded, original, compute) if isinstance(original, Original) else original
    sample = compare_sample(folded, contents.sample, original, compute) if contents.sample else None
    return folded, parity, sample, notes


def _in_axes(found: Found, axes: str) -> Found:
    """Return the contents of a source whose network takes axes in some order, for z, y, x."""
    order = order_of(axes)
    if axes == AXES:
        return found
    said = found.settings
    if said.window or said.spacing or said.case or found.sample:
        raise InvalidInput(
            f"says itself in which order its axes are; leave out {option('axes', axes)}"
        )
    note = f"its axes are {axes} in the original, and zyx here"
    return replace(reordered(found, order), notes=(*found.notes, note))


def _completed(settings: Settings, like: Network) -> Settings:
    """Return settings, with those of a network file where the source says nothing."""
    by_like = not settings.labels
    return Settings(
        like.scaling if settings.scaling == AS_STORED else settings.scaling,
        settings.window or like.window,
        like.labels if by_like else settings.labels,
        like.has_regions if by_like else settings.regions,
        settings.spacing or like.spacing,
        settings.case or like.case,
        settings.about or like.about,
        settings.expects or like.expects,
    )


def _with(network: Network, settings: Settings) -> Network:
    """Return a network with the windows, labels and spacing that its source names."""
    labelled = replace(
        network,
        labels=settings.labels,
        has_regions=settings.regions,
        spacing=settings.spacing,
        case=settings.case,
        about=settings.about,
        expects=settings.expects,
    )
    return with_window(labelled, settings.window) if settings.window else labelled


def _found(source: Any, like: Network | None) -> Found:
    """Return the contents of a source, read by the module for its kind."""
    if isinstance(source, Results):
        return read_results(source)
    if isinstance(source, str | Path):
        return _read_path(Path(source), like)
    if isinstance(source, Mapping):
        return fill(arrays_of(source), like, ordered=True)
    _check_alone(like)
    torch = sys.modules.get("torch")  # only an imported PyTorch can have made its objects
    if torch is not None and isinstance(source, torch.nn.Module):
        return read_module(source)
    if torch is not None and isinstance(source, torch.export.ExportedProgram):
        return of_live_program(source)
    raise InvalidInput(
        "is no network; give a torch.nn.Module, a torch.export.ExportedProgram, a state dict "
        f"or a file: {KINDS}"
    )


def _read_path(path: Path, like: Network | None) -> Found:
    """Return the network of a file or folder."""
    if path.exists() and is_package(path):
        return read_model(path, like)
    if path.exists() and is_results(path) and (path.is_dir() or not like):
        _check_alone(like)
        return read_results(Results(path))
    if path.is_dir() and is_bundle(path):
        _check_alone(like)
        return read_bundle(path)
    if path.is_dir():
        raise InvalidInput(
            f"is a folder, and has no plans.json of nnU-Net's results, no configs/inference.json "
            f"of a MONAI bundle and no rdf.yaml of bioimage.io; give a file: {KINDS}"
        )
    if not path.is_file():
        raise InvalidInput("no such file; check the path")
    if path.suffix == ".safetensors":
        return fill(read_safetensors(path), like, ordered=False)
    if path.suffix == SUFFIX and like is None:
        return read_3dunet(path)
    if path.suffix in PICKLES:
        return fill(read_checkpoint(path), like, ordered=True)
    _check_alone(like)
    if path.suffix not in READERS:
        raise InvalidInput(f"unknown kind of file {path.suffix!r}; give one of {KINDS}")
    return READERS[path.suffix](path)


def _check_alone(like: Network | None) -> None:
    if like:
        raise InvalidInput(
            f"says itself how its layers are connected; {option('like', 'NET.yaml')} is for "
            f"state dicts: leave it out"
        )
