"""The files of a case: those of its scan, its labels, and the folder between them.

The folder lies beside the labels, ``LABELS.case``. A file in it says what it was filled from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from pathlib import Path

from znni.cases.networks import NetworkSet
from znni.cases.previous_stage import PreviousNetwork
from znni.cases.spacing_file import spacing_file
from znni.core import system
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.user_cache import state_of_source, write_whole
from znni.machine.detect import detect_host
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.weights import Weights
from znni.volumes.locate import files_of, not_compressed, split_dataset, writer_at
from znni.volumes.output_place import check_folder_of, refused_at
from znni.volumes.partial_file import hold

BEFORE = "labels-before.npy"  # of the previous stage, over the scan
IDENTITY = "case"  # the file that says which scan and network a folder is of


@dataclass(frozen=True)
class Case:
    """A case to compute.

    Attributes:
        files: the files of the scan, one for each channel.
        out: the labels to make.
        previous: the labels of the previous stage of a cascade, or the network that computes them.
            None: the network is no later stage.
        probabilities: a file ``NAME.npz`` to make, as nnU-Net's, with ``NAME.pkl`` beside it. None:
            none are saved.
    """

    files: tuple[Path, ...]
    out: Path
    previous: Path | PreviousNetwork | None = None
    probabilities: Path | None = None

    @property
    def is_finished(self) -> bool:
        """True if all that it makes exists."""
        made = (self.out, self.probabilities) if self.probabilities else (self.out,)
        return all(path.exists() for path in made)

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All files that are read: those of the scan, and labels of the previous stage."""
        return (*self.files, self.previous) if isinstance(self.previous, Path) else self.files

    @property
    def stages(self) -> Iterator[PreviousNetwork]:
        """The earlier stages of a cascade that are computed, the last one first."""
        stage = self.previous
        while isinstance(stage, PreviousNetwork):
            yield stage
            stage = stage.previous

    @property
    def earlier(self) -> tuple[Network, ...]:
        """The networks of these stages."""
        return tuple(stage.network for stage in self.stages)

    def before(self, stage: PreviousNetwork) -> Case:
        """Return the case of the previous stage, whose labels go into this case's folder."""
        return Case(self.files, self.folder / BEFORE, stage.previous)

    @property
    def folder(self) -> Path:
        """The folder for everything between the scan and the labels."""
        return self.out.with_name(f"{self.out.name}.case")


def check_output(case: Case, networks: NetworkSet) -> None:
    """Check that the labels can be written, before anything takes long.

    Raises:
        InvalidInput: the file would replace the scan, or cannot be written there; no format has
            such an ending; or networks have no probabilities that nnU-Net could read.
    """
    for file in case.inputs:
        writer_at(case.out, file)
    with refused_at(case.out):
        check_folder_of(case.out)
        if case.folder.exists():
            _check_ours(case.folder)
    if case.probabilities:
        first = networks.networks[0]
        if len(networks.networks) > 1 or networks.rules.masks is not None or not _is_linear(first):
            raise InvalidInput(
                f"probabilities are saved for a single network with the labels of nnU-Net, and not "
                f"for {networks.name}; leave them out"
            )


def check_scan(case: Case) -> None:
    """Check that compressed files of a case are whole, as a run that decompresses them does.

    Raises:
        InvalidInput: one of them is damaged.
    """
    for file in case.inputs:
        not_compressed(file, None)


def _check_ours(folder: Path) -> None:
    """Check that znni made the folder of a case, which will be emptied.

    Raises:
        InvalidInput: it holds other files.
    """
    if not (folder / IDENTITY).exists() and not all(map(_is_partial, folder.iterdir())):
        raise InvalidInput(f"{folder}: this folder is not znni's; remove it, or write elsewhere")


def _is_linear(network: Network) -> bool:
    """Return whether windows are blended before any activation, as in nnU-Net."""
    return network.window is None or network.window.activation == "identity"


@contextmanager
def open_folder(
    case: Case, networks: NetworkSet, weights: Sequence[Weights], options: Options
) -> Iterator[bool]:
    """Make the folder of a case, and keep other runs from it within a ``with`` block.

    If another scan or network filled it, it is emptied first.

    Yields:
        True if it has no earlier run's files.

    Raises:
        InvalidInput: it cannot be made, something else lies there, or another run holds it.
    """
    identity, noted = _identity(case, networks, weights, options), case.folder / IDENTITY
    with refused_at(case.out):
        case.folder.mkdir(parents=True, exist_ok=True)
    with held(case):
        known = noted.exists() and noted.read_bytes() == identity
        if not known:
            _check_ours(case.folder)
            with refused_at(case.out):
                _empty(case.folder)
                write_whole(noted, identity)
        yield not known


def _identity(
    case: Case, networks: NetworkSet, weights: Sequence[Weights], options: Options
) -> bytes:
    """Return a hash of all that the files of a case's folder depend on."""
    files = [
        (split_dataset(str(file))[1], str(path.resolve()), *_stamp(path))
        for file in case.inputs
        for path in _files(file)
    ]
    beside = spacing_file(case.files[0])
    if networks.rules.voxels == "json" and beside.exists():
        files.append((None, str(beside.resolve()), *_stamp(beside)))
    threads = detect_host(threads=options.limits.threads).host.threads
    with ThreadPoolExecutor(threads) as pool:  # a hash takes a second for some GB; it is remembered
        list(pool.map(attrgetter("sha256"), weights))
    described = list(map(_described, networks.networks, weights))
    described += [_described(stage.network, stage.weights) for stage in case.stages]
    code = state_of_source(Path(__file__).parents[1])
    content = repr((files, described, networks.numbers, options.limits.accuracy, code))
    return sha256(content.encode()).digest()


def _described(network: Network, weights: Weights) -> tuple[str, ...]:
    """Return all on which the labels of a network depend, beside its input."""
    rules = repr((network.case, network.spacing, network.has_regions, network.labels))
    return network_text(network), rules, weights.sha256


@contextmanager
def held(case: Case) -> Iterator[None]:
    """Keep other runs from the folder of a case within a ``with`` block.

    If the block fails before a step is finished, the folder is removed.
    """
    descriptor = os.open(case.folder, os.O_RDONLY) if system.OPENS_FOLDERS else None
    try:
        if descriptor is not None:
            hold(descriptor, case.folder)
        try:
            yield
        except BaseException as error:
            _drop_notes(error, case)
            if _has_steps(case.folder):
                error.add_note(
                    f"{case.folder} keeps what is finished, and the same command goes on there"
                )
            elif case.folder.exists():
                discard(case)
            raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _drop_notes(error: BaseException, case: Case) -> None:
    """Remove notes on files of a case's folder, which the user has not named."""
    notes = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(f"{case.folder}{os.sep}")]


def _has_steps(folder: Path) -> bool:
    """Return whether a folder has a file that a step of a case has finished."""
    return folder.exists() and not all(
        path.name == IDENTITY or _is_partial(path) for path in folder.iterdir()
    )


def discard_left(case: Case) -> None:
    """Remove the folder of a case whose labels are complete, if a run was killed before it did."""
    if (case.folder / IDENTITY).exists():
        with suppress(InvalidInput, OSError), held(case):
            discard(case)


def discard(case: Case) -> None:
    """Remove the folder of a case. Only the run that holds it may do that."""
    _empty(case.folder)
    case.folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove all files of a folder. The one that says whose it is goes last, in case of a kill."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != IDENTITY:
            path.unlink()
    (folder / IDENTITY).unlink(missing_ok=True)


def _is_partial(path: Path) -> bool:
    """Return whether a file of the folder was not complete when its run was killed."""
    return path.suffix == ".partial"


def _files(scan: Path) -> list[Path]:
    """Return the files of a scan, among them those of chunks."""
    return files_of(scan) or sorted(path for path in scan.rglob("*") if path.is_file())


def _stamp(file: Path) -> tuple[int, int]:
    """Return the size of a file, and the time when it was changed."""
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}; check the path") from None
    return found.st_size, found.st_mtime_ns
