"""``znni finish``: complete an output that was computed in parts."""

from __future__ import annotations

from typing import Annotated

import typer

from znni.cli import options
from znni.cli.words import echo
from znni.core.option_types import Recheck


def finish(
    out: Annotated[str, typer.Argument(help="The output that znni infer --part computed.")],
    recheck: Annotated[Recheck, options.RecheckHelp] = "sample",
) -> None:
    """Complete an output when all its parts are computed.

    Exit with 4 if blocks are missing or damaged: run their parts again, and then finish.
    """
    from znni.inference import parts

    echo(f"{out}: {parts.finish(out, recheck=recheck)}")
