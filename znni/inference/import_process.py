"""An import in a process of its own: ``python -m znni.inference.import_process``.

Reading the files of another library takes that library and several copies of the weights. A run
that imports first, and then computes within a limit of memory, must not keep them.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from znni.core.child_process import command_of, environment, signal_name
from znni.core.errors import RunFailed, ZnniError
from znni.importing.conversion import Imported
from znni.importing.nnunet_folder import Results
from znni.inference.network_import import import_network


class ImportEnded(RunFailed):
    """An import whose process was ended, which another one may complete."""


def import_apart(source: Path | Results, out: Path) -> Imported:
    """Import a network as ``import_network`` does, and give the memory back.

    Args:
        source: its file or folder.
        out: the network file to write. An existing one is replaced.

    Raises:
        InvalidInput: as by ``import_network``.
        RunFailed: as by ``import_network``, or the process was ended.
    """
    ended = _ended_child(pickle.dumps((source, out)))
    if not ended.stdout:
        how = f"signal {signal_name(-ended.returncode)}" if ended.returncode < 0 else "an error"
        raise ImportEnded(
            f"{source if isinstance(source, Path) else source.path}: the process that imports it "
            f"was ended by {how}; it may take too much memory: import it with znni import first"
        )
    answer, cause = pickle.loads(ended.stdout)
    if isinstance(answer, ZnniError):
        raise answer from cause
    imported: Imported = answer
    return imported


def _ended_child(given: bytes) -> subprocess.CompletedProcess[bytes]:
    command = command_of("znni.inference.import_process")
    return subprocess.run(
        command, input=given, stdout=subprocess.PIPE, check=False, env=environment()
    )


def _answered(given: bytes) -> bytes:
    """Import what a text of bytes names, and return the summary or the error as bytes."""
    source, out = pickle.loads(given)
    try:
        return pickle.dumps((import_network(source, out, overwrite=True), None))
    except ZnniError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else None
        return pickle.dumps((error, cause))


if __name__ == "__main__":
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    with os.fdopen(own, "wb") as answers:
        answers.write(_answered(sys.stdin.buffer.read()))
