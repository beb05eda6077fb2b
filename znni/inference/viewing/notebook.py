"""An output over its input, shown in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from znni.core import html
from znni.inference.viewing import Page, view

HEIGHT = 640  # pixels of the frame


@dataclass(frozen=True)
class Shown:
    """An output over its input, as a notebook shows it.

    Attributes:
        content: the page as HTML.
        page: what it shows, and how other viewers open the volumes.
    """

    content: str
    page: Page

    def _repr_html_(self) -> str:
        return html.page(self.content, HEIGHT)

    def __str__(self) -> str:
        """Return the commands of other viewers, where there is no notebook."""
        return f"napari:\n  {self.page.napari}\nNeuroglancer:\n  {self.page.neuroglancer}"


def show(
    source: str | Path,
    out: str | Path,
    *,
    dataset: str | None = None,
    voxel_size: str | None = None,
    region: tuple[slice, slice, slice] | None = None,
    stride: int | None = None,
    labels: bool | None = None,
) -> Shown:
    """Show an output over its input in a notebook, as ``znni.view`` writes it to a file.

    Args:
        source: the input, a file or a URL.
        out: the output of that input.
        dataset: dataset of the input, if its file has several.
        voxel_size: extents of the input's voxels, as for ``znni.view``.
        region: input voxels to show, such as ``numpy.s_[10:20, :, 5:]``.
        stride: step between voxels shown; by default the smallest that fits.
        labels: whether values are labels, as for ``znni.view``.

    Raises:
        InvalidInput: a volume cannot be opened, or they do not belong together.
        RunFailed: a volume cannot be read.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        made = view(
            source,
            out,
            path,
            dataset=dataset,
            voxel_size=voxel_size,
            region=region,
            stride=stride,
            labels=labels,
        )
        return Shown(path.read_text(encoding="utf-8"), made)
