"""The files of a bioimage.io package: a zip, a folder, or the folder of an ``rdf.yaml``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile
from zipfile import Path as ZipPath

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


@dataclass(frozen=True)
class Package:
    """The files of a package: a folder, or a zip, of which files that are used are unpacked.

    Attributes:
        root: the folder, or the top of the zip.
        named: the description, if the user named it.
        unpacked: the folder for the files of a zip.
    """

    root: Path | ZipPath
    named: Path | None = None
    unpacked: Path | None = None

    def description(self) -> Any:
        """Return the content of its description."""
        known = [place for name in DESCRIPTIONS if (place := self.root / name).is_file()]
        if self.named:
            known = [self.named]
        if not known:
            raise InvalidInput(f"has no {' or '.join(DESCRIPTIONS)}; is it a bioimage.io package?")
        try:
            with known[0].open("rb") as file:
                return _content(known[0].name, file.read(LARGEST_DESCRIPTION + 1))
        except OSError as error:
            raise InvalidInput(f"cannot be read: {error.strerror}; check the path") from None

    def file(self, source: Source) -> Path:
        """Return the path of one of its files.

        Raises:
            InvalidInput: it is elsewhere, missing, or not the file that the description means.
        """
        inside = _inside(source)
        file = self.root.joinpath(str(inside))
        if not file.is_file():
            raise InvalidInput(f"its file {source.path} is missing; {DOWNLOAD}")
        if not isinstance(file, Path):
            file = self._unpack(file, inside)
        return _checked(file, source)

    def _unpack(self, packed: ZipPath, inside: PurePosixPath) -> Path:
        assert self.unpacked is not None
        written = self.unpacked.joinpath(inside)
        try:
            written.parent.mkdir(parents=True, exist_ok=True)
            with packed.open("rb") as held, written.open("wb") as file:
                copyfileobj(held, file)
        except OSError as error:
            raise InvalidInput(
                f"cannot be unpacked into {self.unpacked}: {error.strerror}"
            ) from None
        return written


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """Return a package's files, which exist until the end of the ``with`` block.

    Raises:
        InvalidInput: it cannot be read, or has no description.
    """
    if path.is_dir():
        yield Package(path)
    elif path.suffix != ".zip":
        yield Package(path.parent, named=path)
    else:
        try:
            with ZipFile(path) as archive, TemporaryDirectory(prefix="znni-") as folder:
                yield Package(ZipPath(archive), unpacked=Path(folder))
        except (BadZipFile, NotImplementedError, RuntimeError) as error:  # or with a password
            raise InvalidInput(f"cannot be read as a zip: {error}; download it again") from None


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
