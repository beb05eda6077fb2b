"""Messages to the user, as napari shows them."""

from __future__ import annotations

from napari.utils import notifications
from qtpy.QtCore import Qt
from qtpy.QtWidgets import QPlainTextEdit

from znni.core.errors import in_one_line

LINES = 40


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


def show_in_window(text: QPlainTextEdit) -> QPlainTextEdit:
    """Show the text of a box in a window that is as wide as its longest line, and return it."""
    window = QPlainTextEdit(text)
    window.setWindowFlag(Qt.Window)
    window.setAttribute(Qt.WA_DeleteOnClose)
    window.setWindowTitle("Plan and report")
    window.setFont(text.font())
    window.setReadOnly(True)
    window.setLineWrapMode(QPlainTextEdit.NoWrap)
    window.setPlainText(text.toPlainText())
    letters, margin = window.fontMetrics(), 6
    longest = max(map(len, text.toPlainText().splitlines()), default=0) + margin
    window.resize(letters.horizontalAdvance("0") * longest, letters.height() * LINES)
    window.show()
    return window
