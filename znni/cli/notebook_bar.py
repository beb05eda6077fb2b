"""A bar of progress in a notebook: HTML that is replaced in place, without widgets."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from znni.core.text import duration

SECONDS = 0.25  # between two pictures of the bar


@dataclass(frozen=True)
class Bar:
    """The bar at one moment."""

    done: int
    total: int
    rate: float
    speed: str
    beside: str = ""

    def _repr_html_(self) -> str:
        return f'<progress value="{self.done}" max="{self.total}"></progress> <code>{self}</code>'

    def __repr__(self) -> str:
        said = [f"{self.done / self.total:.0%}"]
        if self.rate and self.speed:
            said.append(self.speed)
        if self.rate and self.speed and self.done < self.total:
            said.append(f"{duration((self.total - self.done) / self.rate)} left")
        return ", ".join([*said, self.beside] if self.beside else said)


def display_of_notebook() -> Any:
    """Return IPython's function ``display`` in a notebook; None elsewhere."""
    module = sys.modules.get("IPython")  # it is loaded wherever there is a notebook
    shell = module and module.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return import_module("IPython.display").display


class NotebookBar:
    """Shows progress in the output of a notebook's cell."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._shown = 0.0

    def show(self, bar: Bar, now: float) -> None:
        """Show the bar, unless it was shown a moment ago."""
        if self._handle is None:
            self._handle = self._display(bar, display_id=True)
        elif now - self._shown >= SECONDS or bar.done >= bar.total:
            self._handle.update(bar)
        else:
            return
        self._shown = now
