"""Options that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Bits, Recheck


def check_not_given(why: str, given: Mapping[str, object]) -> None:
    """Refuse options that do not go together with others. None and False are not given."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise InvalidInput(f"{option(name, value)} {why}")


def are_several(
    volumes: Sequence[str],
    out: str | None,
    suffix: str | None,
    *,
    part: str | None,
    cluster: str | None,
    bits: Bits | None,
    recheck: Recheck | None,
    dry_run: bool,
) -> bool:
    """Return whether outputs are made in a folder, after a check that the options go together.

    Raises:
        InvalidInput: two of them exclude each other, or one needs another.
    """
    from znni.volumes.locate import names_folder

    if not cluster:
        for name, value in (("bits", bits), ("recheck", recheck)):
            if value:
                raise InvalidInput(f"--{name} {value} is for --cluster; give both, or leave it out")
    elif part:
        raise InvalidInput("--cluster and --part both share out the blocks; give one of them")
    elif dry_run:
        raise InvalidInput(
            "--dry-run is about this machine; for a cluster, give znni plan --cluster, or leave "
            "out one of them"
        )
    if len(volumes) == 1 and not (out and names_folder(out)):
        if suffix:
            raise InvalidInput(f"--suffix {suffix} names outputs in a folder; give --out FOLDER/")
        return False
    for name, given in (("--part", part), ("--cluster", cluster)):
        if given:
            raise InvalidInput(
                f"{name} is for one volume and one output; give --out FILE, or leave {name} out"
            )
    if not out:
        raise _without_folder(volumes)
    if not names_folder(out, several=True):
        raise InvalidInput(
            f"--out {out} names one file for several volumes; give --out FOLDER/, and the ending "
            f"with --suffix"
        )
    return True


def _without_folder(volumes: Sequence[str]) -> InvalidInput:
    """Return the error about several volumes without a folder; the last may be the output."""
    from znni.volumes.formats.slices.files import is_slice
    from znni.volumes.locate import split_dataset
    from znni.volumes.stored import is_url

    *_, last = volumes
    if len(volumes) == 2 and not is_url(last) and not Path(split_dataset(last)[0]).exists():
        return InvalidInput(
            f"{last}: there is no such volume; if it is the output, give --out {last}"
        )
    folder = Path(last).parent
    if all(Path(volume).parent == folder and is_slice(Path(volume).name) for volume in volumes):
        return InvalidInput(
            f"several volumes need a folder for their outputs; give --out FOLDER/; if these "
            f"{len(volumes)} files are the slices of one volume, give their folder instead, "
            f"{folder}/"
        )
    return InvalidInput(
        f"several volumes need a folder for their outputs; give --out FOLDER/, or --out {last} "
        f"if that is the output"
    )
