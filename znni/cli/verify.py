"""``znni verify``: check an output against its input and network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from znni.cli.options import WindowOptions, grouped, helped
from znni.cli.words import echo
from znni.core.option_types import VERIFIED_VOXELS

OF_CASES = (".nii", ".nii.gz", ".nrrd", ".mha")  # formats in which scans and their labels lie
OF_CASE, BY_LABELS = "For a whole case:", "Default: as the labels note, or the network's file."


@grouped
def verify(
    out: Annotated[str, typer.Argument(help="An output of znni infer.")],
    voxels: Annotated[
        int, typer.Option(min=1, help="Voxels to recompute; each costs one field of view.")
    ] = VERIFIED_VOXELS,
    blocks: Annotated[
        int | None,
        typer.Option(min=0, help="Blocks to compare with their checksums. Default: all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed for choosing both. Default: new ones each time.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help="The input, if it was moved.")
    ] = None,
    mask: Annotated[
        str | None, typer.Option(metavar="FILE", help="The mask, if it was moved.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The weights, if they were moved.")] = None,
    case: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="For labels of a whole case: its scan, once for each channel."
        ),
    ] = None,
    net: Annotated[
        Path | None, typer.Option(help="For a whole case: its network file or results folder.")
    ] = None,
    windows: WindowOptions = helped(
        window=f"{OF_CASE} the extents of its windows. {BY_LABELS}",
        overlap=f"{OF_CASE} the share of a window that the next one covers again. {BY_LABELS}",
        blend=f"{OF_CASE} how much the voxels of a window count. {BY_LABELS}",
        mirror=f"{OF_CASE} the axes along which windows were mirrored too. {BY_LABELS}",
    ),
) -> None:
    """Recompute random voxels of an output in float64, from its input and network alone.

    Also compare the output's blocks with their checksums. Exit with 5 if anything differs or a
    block cannot be read. Exit with 4 if the input or the output cannot be opened.
    """
    from znni.cli.progress import show_progress
    from znni.core.errors import InvalidInput, OutputDiffers, option
    from znni.inference.verify import verify as verify_output

    if case or net:
        given = {"source": source, "mask": mask, "blocks": blocks}
        if other := next((name for name, value in given.items() if value is not None), None):
            raise InvalidInput(f"{option(other, given[other])} does not apply to a whole case")
        if not (case and net):
            raise InvalidInput(
                f"a whole case has a scan and a network; give {option('case', 'ct.nii.gz')} and "
                f"{option('net', 'net.yaml')}"
            )
        verify_labels(Path(out), case, net, weights, windows, voxels, seed)
        return
    if windows != WindowOptions():
        raise InvalidInput(
            "an output notes its own windows; leave out --window, --overlap, --blend and --mirror"
        )
    try:
        with show_progress() as progress:
            found = verify_output(
                out,
                source=source,
                mask=mask,
                weights=weights,
                voxels=voxels,
                blocks=blocks,
                seed=seed,
                progress=progress,
            )
    except InvalidInput as error:
        if out.endswith(OF_CASES):
            error.add_note("for labels of a whole case, give --case and --net")
        raise
    if not found.agrees:
        remedy = "compute it again by the command that znni info shows, after deleting it"
        if found.unreadable or found.blocks.unreadable:
            remedy = f"check the disk, or copy the output again; if that does not help, {remedy}"
        raise OutputDiffers(f"{found}; {remedy}")
    echo(found)


def verify_labels(
    out: Path,
    files: list[Path],
    net: Path,
    weights: Path | None,
    windows: WindowOptions,
    voxels: int,
    seed: int | None,
) -> None:
    """Compute random voxels of a case's labels again."""
    from znni.cases.case_folder import Case
    from znni.cases.network_set import networks_at
    from znni.cases.verification import verify_case
    from znni.cli.progress import show_progress
    from znni.cli.values import in_windows
    from znni.core.errors import OutputDiffers

    networks, case = networks_at(net), Case(tuple(files), out)
    with show_progress("windows") as progress:
        found = verify_case(
            case,
            networks,
            networks.weights(weights),
            change=lambda network: in_windows(network, windows),
            voxels=voxels,
            seed=seed,
            progress=progress,
        )
    if not found.agrees:
        raise OutputDiffers(
            f"{found}; labels from which components were removed differ; otherwise compute them "
            f"again, after deleting them"
        )
    echo(found)
