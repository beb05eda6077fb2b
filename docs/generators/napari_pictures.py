"""Take the pictures of docs/how-to/napari.md: each step of the page, in a real window.

It needs napari and a display, such as that of ``xvfb-run``. It takes some minutes:

    xvfb-run -s "-screen 0 1400x1000x24" python docs/generators/napari_pictures.py

It prints the seconds of each step.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from time import monotonic
from typing import Any

import napari
from qtpy.QtWidgets import QApplication

PICTURES = Path(__file__).parents[1] / "how-to" / "napari"
EXTENTS = 1300, 900  # of the window
LONGEST_SECONDS = 300.0


def main(folder: Path) -> None:
    """Follow the page in a new window, and write a picture after each step.

    Args:
        folder: the folder for the pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as outputs, chdir(outputs):
        Walk(folder).walk("cells.zarr")


class Walk:
    """A walk through the page.

    Args:
        folder: the folder for the pictures.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = monotonic()
        self._viewer = napari.Viewer()
        self._viewer.window.resize(*EXTENTS)

    def walk(self, out: str) -> None:
        """Do all steps.

        Args:
            out: the output to make.
        """
        viewer = self._viewer
        viewer.open_sample("znni", "cells")
        _, widget = viewer.window.add_plugin_dock_widget("znni", "Run a network")
        widget.form.network.setCurrentText("cells-unet")
        widget.form.out.setText(out)
        widget.form.ram.setText("600MiB")
        self._picture("chosen")
        widget.plan.click()
        self._wait(lambda: not widget.is_busy)
        self._picture("planned")
        widget.run.click()
        self._wait(lambda: 0.3 * widget.bar.maximum() < widget.bar.value())
        self._wait(lambda: len(viewer.layers) > 1)
        self._picture("running")
        widget.cancel.click()
        self._wait(lambda: not widget.is_busy)
        widget.plan.click()
        self._wait(lambda: not widget.is_busy)
        self._picture("cancelled")
        widget.run.click()
        self._wait(lambda: not widget.is_busy)
        self._picture("finished")
        widget.threshold.shows.setChecked(True)
        widget.threshold.slider.setValue(700)
        self._picture("threshold")
        viewer.close()

    def _wait(self, reached: Callable[[], bool]) -> None:
        """Let the window work until something is reached.

        Raises:
            TimeoutError: that takes too long.
        """
        end = monotonic() + LONGEST_SECONDS
        while not reached():
            QApplication.processEvents()
            if monotonic() > end:
                raise TimeoutError("the window did not reach the next step")

    def _picture(self, name: str) -> None:
        """Write a picture of the window, and print how long the step took."""
        print(f"{name}: {monotonic() - self._begun:.1f} s", flush=True)
        end = monotonic() + 1.0  # for the canvas to be drawn
        self._wait(lambda: monotonic() > end)
        picture: Any = self._viewer.screenshot(canvas_only=False, flash=False)
        write(self._folder / f"{name}.png", picture)
        self._begun = monotonic()


def write(path: Path, picture: Any) -> None:
    """Write a picture with few colours, so that the file is small."""
    from PIL import Image

    Image.fromarray(picture[..., :3]).quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=PICTURES)
    main(parser.parse_args().folder.absolute())
