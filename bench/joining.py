"""Results of several commands as one record: of measurements too long to be made at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.record import Record
from znni.core.errors import InvalidInput

# What a record's rows are compared under, and so has to be the same.
SAME = ("machine", "libraries")


def join(records: Sequence[Record]) -> Record:
    """All rows, in order, with the commands, revisions and dates that gave them.

    Args:
        records: one at least.

    Raises:
        InvalidInput: they are of different kinds, machines or libraries.
    """
    first = records[0]
    for record in records:
        if record.kind != first.kind:
            raise InvalidInput(f"results of {record.kind} and of {first.kind} cannot be joined")
        for name in SAME:
            if record.about[name] != first.about[name]:
                raise InvalidInput(
                    f"results of different {name} cannot be joined: {record.about[name]} and "
                    f"{first.about[name]}"
                )
    every = [record.about for record in records]
    about = {
        **first.about,
        "command": "\n".join(_distinct(one["command"] for one in every)),
        "revision": ", ".join(_distinct(one["revision"] for one in every if one["revision"])),
        "date": " to ".join(_distinct([every[0]["date"], every[-1]["date"]])),
        "ceilings": [ceilings for one in every for ceilings in one["ceilings"]],
    }
    return Record(first.kind, [row for record in records for row in record.rows], about)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
