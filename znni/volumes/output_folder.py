"""Folders to which files are written: on a file system or at a URL, of an output or another."""

from __future__ import annotations

from typing import TypeAlias

from znni.volumes.partial_folder import PartialFolder
from znni.volumes.remote_files import RemoteFiles
from znni.volumes.remote_output import RemoteFolder
from znni.volumes.shared_files import LocalFiles
from znni.volumes.stored import is_url

Files: TypeAlias = LocalFiles | RemoteFiles
OutputFolder: TypeAlias = PartialFolder | RemoteFolder


def output_folder(place: str) -> OutputFolder:
    """Return the folder of an output at a path or a URL. Nothing is made yet.

    Raises:
        InvalidInput: nothing can be made at such a URL.
    """
    return RemoteFolder(place) if is_url(place) else PartialFolder(place)
