"""Files that come with znni, found by their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.nearest import nearest
from znni.core.version import PACKAGE


@dataclass(frozen=True)
class ShippedFiles:
    """YAML files of one kind. A name stands for the file ``name.yaml``.

    Attributes:
        kind: the kind in one word, such as ``network``.
        folder: the name of their folder, in an installed package and in the repository.
    """

    kind: str
    folder: str

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return sorted(path.stem for path in self._place().glob("*.yaml"))

    def file(self, name: str) -> Path | None:
        """Return the file of a name; None if no such file comes with znni."""
        return self._place() / f"{name}.yaml" if name in self.names else None

    def found(self, path: Path, beside: Path = Path()) -> Path:
        """Return the path of a file that is there, or that comes with znni under this name.

        Args:
            path: a path, or a name alone.
            beside: the folder that a path starts from.

        Raises:
            InvalidInput: it is only a name, and neither is there.
        """
        there = beside / path
        if path.suffix or len(path.parts) > 1 or there.exists():
            return there
        if known := self.file(str(path)):
            return known
        close = nearest(str(path), self.names)
        hint = f"did you mean {close}? There are" if close else "there are"
        raise InvalidInput(
            f"{path}: no such file, and no {self.kind} of this name comes with znni; {hint} "
            f"{', '.join(self.names)}"
        )

    def _place(self) -> Path:
        installed = PACKAGE / "shipped" / self.folder
        return installed if installed.is_dir() else PACKAGE.parent / self.folder


NETWORKS = ShippedFiles("network", "networks")
MACHINES = ShippedFiles("machine", "machines")
