"""Advice for networks that znni cannot express: their own library computes them in windows."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from znni.network.models import is_model_file

SAVED = "torch.export.save({program}, 'model.pt2')"
OF_MODULE = "torch.export.export(model.eval(), (torch.zeros(1, MAPS, Z, Y, X),))"


def own_library_advice(source: Any) -> str:
    """Return advice to run the source of an import as it is, and the words before the reason.

    It is empty for a source that no library computes, such as a state dict.
    """
    torch = sys.modules.get("torch")  # only an imported PyTorch can have made its objects
    if isinstance(source, str | Path):
        path = Path(source)
        if is_model_file(path):
            return _advice("give the file itself", str(source))
        if path.suffix in (".h5", ".hdf5"):  # ZNN itself is not maintained
            return ""
        return _advice("export it to ONNX, and give that file", "model.onnx")
    is_program = torch is not None and isinstance(source, torch.export.ExportedProgram)
    saved = SAVED.format(program="program" if is_program else OF_MODULE)
    return _advice(f"save it by {saved}, and give that file", "model.pt2")


def _advice(what: str, file: str) -> str:
    return (
        f"is not imported, but runs as it is, in windows: {what} to a run as network={file!r} "
        f"(--net {shlex.quote(str(file))}), with the window (--window Z,Y,X) that it was trained "
        f"on. Why it is not imported: "
    )
