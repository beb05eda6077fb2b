"""Limits of Linux control groups: a container's share of memory and processors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from znni.core.system import text_of

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

# Limit, use, and the cached file contents counted in the use, which the system can drop. The first
# line is for version 2, the second for version 1.
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_left() -> int | None:
    """Return the bytes that the process may still take, or None if there is no limit."""
    left = []
    for folder in _folders("memory"):
        for limit_file, used_file, cached_name in MEMORY_FILES:
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and used is not None:
                left.append(max(limit - used + _statistic(folder, cached_name), 0))
    return min(left, default=None)


def processors() -> float | None:
    """Return how many processors' time the process may use, or None if there is no limit."""
    allowed = []
    for folder in _folders("cpu"):
        quota, _, period = text_of(folder / "cpu.max").partition(" ")
        pair = (
            (int(quota), int(period))
            if quota.isdecimal() and period.isdecimal()
            else (_number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us"))
        )
        if pair[0] and pair[1]:
            allowed.append(pair[0] / pair[1])
    return min(allowed, default=None)


def _folders(controller: str) -> Iterator[Path]:
    """Yield the process's groups, innermost first, in version 2 and version 1 of a controller."""
    for line in text_of(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        group = root / path.lstrip("/")
        yield group
        while group != root:
            group = group.parent
            yield group


def _statistic(folder: Path, name: str) -> int:
    lines = (line.split() for line in text_of(folder / "memory.stat").splitlines())
    return next((int(words[1]) for words in lines if words[0] == name), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if there is none (``max`` means no limit)."""
    text = text_of(path)
    return int(text) if text.isdecimal() else None
