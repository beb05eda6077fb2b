"""Messages to the user, as napari shows them."""

from __future__ import annotations

from napari.utils import notifications

from znni.core.errors import in_one_line


def show_failure(error: BaseException | str) -> None:
    """Show an error without a traceback: it says what to do."""
    text = error if isinstance(error, str) else in_one_line(error)
    notifications.show_error(text)


def show_warning(text: str) -> None:
    """Show a warning."""
    notifications.show_warning(text)


def show_message(text: str) -> None:
    """Show what happened."""
    notifications.show_info(text)
