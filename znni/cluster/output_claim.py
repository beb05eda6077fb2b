"""The claim of one coordinator to an output, so that no second one computes it at the same time."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from threading import Event, Thread
from typing import Self
from uuid import uuid4

import psutil

from znni.core.errors import InvalidInput
from znni.volumes.output_folder import Files
from znni.volumes.stored import reason

NAME = "coordinator.json"
RENEW_SECONDS = 20.0
STALE_SECONDS = 90.0  # a coordinator that has not renewed its claim for so long is gone


class OutputClaim:
    """A file that says which process hands out the blocks of an output, within a ``with`` block.

    No file is locked, because some shared file systems have no locks. The process renews the file
    while it lives. At the end it deletes the file, or empties it where files are only replaced.
    """

    def __init__(self, files: Files, output: str) -> None:
        self._files = files
        self._ended = Event()
        self._mine = {
            "host": platform.node(),
            "process": os.getpid(),
            "started": psutil.Process().create_time(),
            "id": uuid4().hex,
        }
        try:
            self._claim(output)
        except OSError as error:
            raise InvalidInput(
                f"{output}: cannot be written: {reason(error)}; write elsewhere"
            ) from None
        self._thread = Thread(target=self._keep, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._files.put(NAME)
            if self._files.has(NAME):
                self._files.put(NAME, b"{}")
            if not self._files.has(""):  # nothing was begun, or all is complete
                self._files.discard()

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with suppress(OSError):  # the next time may do
                self._files.put(NAME, self._content())

    def _claim(self, output: str) -> None:
        self._files.make_once(NAME, self._content())
        other = self._read()
        if other and other["id"] != self._mine["id"] and _alive(other):
            raise InvalidInput(
                f"{output}: process {other['process']} on {other['host']} is computing it; wait "
                f"until that process ends, or end it"
            )
        self._files.put(NAME, self._content())

    def _content(self) -> bytes:
        return json.dumps(self._mine | {"renewed": time.time()}).encode()

    def _read(self) -> dict[str, object] | None:
        with suppress(OSError, ValueError):
            found = json.loads(self._files.get(NAME))
            if isinstance(found, dict) and {*self._mine, "renewed"} <= set(found):
                return found
        return None


def _alive(other: dict[str, object]) -> bool:
    """Return whether the process that wrote a claim may still be there."""
    if other["host"] != platform.node():
        renewed = other["renewed"]
        return isinstance(renewed, float) and time.time() - renewed < STALE_SECONDS
    process = other["process"]
    if not isinstance(process, int):
        return False
    try:
        return psutil.Process(process).create_time() == other["started"]
    except psutil.Error:
        return False
