"""Recognition of names that are of networks for whole cases alone. It loads few modules."""

from __future__ import annotations

import re
from pathlib import Path

from znni.importing.nnunet_folder import is_results

ENDINGS = (".yaml", ".yml")
KEY = re.compile(r"^networks *:", re.MULTILINE)


def is_set(path: Path) -> bool:
    """Return whether a file is a set file: it has ``networks:`` at its top."""
    try:
        known = path.suffix in ENDINGS and path.is_file()
        return known and bool(KEY.search(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        return False


def is_whole_case(network: str | Path) -> bool:
    """Return whether a name is of networks for whole cases alone.

    It is so for a results folder of nnU-Net, and for a set file. Such networks are for
    ``znni.infer_case``, and others for ``znni.infer``.

    Args:
        network: the name of a file or a folder.
    """
    path = Path(network)
    return (path.is_dir() and is_results(path)) or is_set(path)
