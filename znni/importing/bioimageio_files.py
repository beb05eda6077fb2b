"""The files of a bioimage.io package: a zip, a folder, or the folder of an ``rdf.yaml``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from zipfile import BadZipFile, ZipFile

from znni.core.errors import InvalidInput
from znni.core.yaml_file import plain_content
from znni.importing.bioimageio_description import Source

DESCRIPTIONS = ("rdf.yaml", "bioimageio.yaml")
DOWNLOAD = "download the whole package, a .zip, and give that"
LARGEST_DESCRIPTION = 2**22  # bytes
YAML_SUFFIXES = (".yaml", ".yml")


def is_package(path: Path) -> bool:
    """Return whether a file or folder may be a bioimage.io package."""
    if path.is_dir():
        return any((path / name).is_file() for name in DESCRIPTIONS)
    return path.suffix in (".zip", *YAML_SUFFIXES)


class Package(Protocol):
    """The files of a package."""

    def description(self) -> Any:
        """Return the content of its description."""

    def file(self, source: Source) -> Path:
        """Return the path of one of its files.

        Raises:
            InvalidInput: it is elsewhere, missing, or not the file that the description means.
        """


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """Return a package's files, which exist until the end of the ``with`` block.

    Raises:
        InvalidInput: it cannot be read, or has no description.
    """
    if path.suffix != ".zip" or path.is_dir():
        yield _Folder(path)
        return
    try:
        with ZipFile(path) as archive, TemporaryDirectory(prefix="znni-") as folder:
            yield _Archive(archive, Path(folder))
    except (BadZipFile, NotImplementedError, RuntimeError) as error:  # damaged, or with a password
        raise InvalidInput(f"cannot be read as a zip: {error}; download it again") from None


class _Folder:
    """A package as a folder."""

    def __init__(self, path: Path) -> None:
        self._folder = path if path.is_dir() else path.parent
        named = (self._folder / name for name in DESCRIPTIONS)
        self._description = next(filter(Path.is_file, named), path) if path.is_dir() else path

    def description(self) -> Any:
        try:
            with self._description.open("rb") as file:
                return _content(self._description.name, file.read(LARGEST_DESCRIPTION + 1))
        except OSError as error:
            raise InvalidInput(f"cannot be read: {error.strerror}; check the path") from None

    def file(self, source: Source) -> Path:
        found = self._folder.joinpath(_inside(source))
        if not found.is_file():
            raise _missing(source)
        return _checked(found, source)


class _Archive:
    """A package as a zip. Only files that are asked for are written to a folder."""

    def __init__(self, archive: ZipFile, folder: Path) -> None:
        self._archive = archive
        self._folder = folder

    def description(self) -> Any:
        names = [name for name in DESCRIPTIONS if name in self._archive.namelist()]
        if not names:
            raise InvalidInput(f"has no {' or '.join(DESCRIPTIONS)}; is it a bioimage.io package?")
        with self._archive.open(names[0]) as file:
            return _content(names[0], file.read(LARGEST_DESCRIPTION + 1))

    def file(self, source: Source) -> Path:
        inside = _inside(source)
        written = self._folder.joinpath(inside)
        try:
            with self._archive.open(str(inside)) as packed:
                written.parent.mkdir(parents=True, exist_ok=True)
                with written.open("wb") as file:
                    copyfileobj(packed, file)
        except KeyError:
            raise _missing(source) from None
        except OSError as error:
            raise InvalidInput(
                f"cannot be unpacked into {self._folder}: {error.strerror}"
            ) from None
        return _checked(written, source)


def _content(name: str, data: bytes) -> Any:
    if len(data) > LARGEST_DESCRIPTION:
        raise InvalidInput(f"{name} is larger than {LARGEST_DESCRIPTION:,} bytes; is it the file?")
    try:
        return plain_content(Path(name), data.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not UTF-8 text, as YAML must be") from None


def _inside(source: Source) -> PurePosixPath:
    """Return the path of a file within the package."""
    if "://" in source.path:
        raise InvalidInput(f"its file {source.path} is on the web, not in the package; {DOWNLOAD}")
    path = PurePosixPath(source.path)
    if path.is_absolute() or ".." in path.parts or "\\" in source.path or not path.parts:
        raise InvalidInput(f"its file {source.path!r} lies outside of the package; {DOWNLOAD}")
    return path


def _missing(source: Source) -> InvalidInput:
    return InvalidInput(f"its file {source.path} is missing; {DOWNLOAD}")


def _checked(path: Path, source: Source) -> Path:
    """Return a file after comparing it with the checksum in the description."""
    if source.sha256:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != source.sha256.lower():
            raise InvalidInput(
                f"its file {source.path} has the SHA-256 {found}, and the description says "
                f"{source.sha256}; it is damaged or another file: {DOWNLOAD}"
            )
    return path
