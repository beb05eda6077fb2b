"""A text in a window of its own, for lines that are wider than the plugin."""

from __future__ import annotations

from qtpy.QtCore import Qt
from qtpy.QtWidgets import QPlainTextEdit

LINES = 40


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
