"""Files that come with znni, found by their names from any folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.nearest import nearest
from znni.core.version import PACKAGE

ENDING = ".yaml"


@dataclass(frozen=True)
class ShippedFiles:
    """YAML files of one kind. A file is found by its name, with or without ``.yaml``.

    Attributes:
        kind: the kind in one word, such as ``network``.
        folder: the name of their folder, in an installed package and in the repository.
    """

    kind: str
    folder: str

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return sorted(path.stem for path in self._place().glob(f"*{ENDING}"))

    def file(self, name: str) -> Path | None:
        """Return the file of a name; None if no such file comes with znni."""
        stem = name.removesuffix(ENDING)
        return self._place() / f"{stem}{ENDING}" if stem in self.names else None

    def found(self, path: Path, beside: Path = Path()) -> Path:
        """Return the path of a file that is there, or that comes with znni under this name.

        Args:
            path: a path, or a name alone.
            beside: the folder that a path starts from.

        Raises:
            InvalidInput: it is only a name, and neither is there.
        """
        there = beside / path
        if len(path.parts) > 1 or there.exists():
            return there
        if known := self.file(path.name):
            return known
        choices = {other.stem: other.name for other in beside.glob(f"*{ENDING}")}
        choices |= {name: name for name in self.names}
        close = nearest(path.name.removesuffix(ENDING), choices)
        hint = f"did you mean {choices[close]}? There are" if close else "there are"
        raise InvalidInput(
            f"{path}: no such {self.kind} file, and no {self.kind} of this name comes with znni; "
            f"{hint} {', '.join(self.names)}"
        )

    def _place(self) -> Path:
        installed = PACKAGE / "shipped" / self.folder
        return installed if installed.is_dir() else PACKAGE.parent / self.folder


NETWORKS = ShippedFiles("network", "networks")
MACHINES = ShippedFiles("machine", "machines")
