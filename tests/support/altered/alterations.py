"""Faults of the process that computes blocks. They are put in before that process imports znni."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def another_machine() -> None:
    """Have the process find a processor of another kind."""
    from znni.machine import detect

    found_here = detect.detect_for

    def found(*arguments: Any, **options: Any) -> Any:
        here = found_here(*arguments, **options)
        return replace(here, host=replace(here.host, name="Another 9000"))

    detect.detect_for = found


def other_versions() -> None:
    """Have the process find another version of NumPy."""
    from importlib import metadata

    real = metadata.version
    metadata.version = lambda name: "0.0.1" if name == "numpy" else real(name)


def wrong_values() -> None:
    """Have the process compute with slightly other weights."""
    from znni.inference import build_runner

    prepare = build_runner.prepare

    def prepared(plan: Any, weights: Any, **options: Any) -> Any:
        layers = {
            name: replace(layer, weight=layer.weight * 1.001)
            for name, layer in weights.layers.items()
        }
        return prepare(plan, replace(weights, layers=layers), **options)

    build_runner.prepare = prepared


def full_disk() -> None:
    """Have the process find no room for any file of the output."""
    from znni.volumes import shared_files

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shared_files.put_file = no_room


def slow_disk() -> None:
    """Have the process take longer for each file of the output."""
    from znni.volumes import shared_files

    put = shared_files.put_file

    def put_slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.2)
        return put(*arguments, **options)

    shared_files.put_file = put_slowly


class TwoPartError(Exception):
    """An error that is pickled, and cannot be read again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def odd_error() -> None:
    """Have the process fail with an error that cannot travel."""
    from znni.inference import build_runner

    def prepared(*_: Any, **__: Any) -> Any:
        raise TwoPartError("two", "parts")

    build_runner.prepare = prepared


def no_file() -> None:
    """Have the process find no input."""
    from znni.volumes import locate

    opened = locate.open_volume
    locate.open_volume = lambda source, *more, **named: opened(
        f"/elsewhere{source}", *more, **named
    )


ALL: dict[str, Callable[[], None]] = {
    "another machine": another_machine,
    "other versions": other_versions,
    "wrong values": wrong_values,
    "full disk": full_disk,
    "slow disk": slow_disk,
    "odd error": odd_error,
    "no file": no_file,
}
