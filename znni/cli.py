"""The command line: ``znni infer``, ``znni plan``, ``znni info``."""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from znni import __version__
from znni.errors import InvalidInput, ZnniError
from znni.options import Accuracy, Border, OutputType, Pad
from znni.stopping import Stopped, stopping_on_signals

if TYPE_CHECKING:
    from znni.network import Network
    from znni.plans import Plan

INTERNAL_ERROR = 70

app = typer.Typer(
    name="znni",
    help="Run 3D ConvNets over volumes larger than memory, as fast as this machine can.",
    epilog="Add --debug to any command to see its log, and a traceback where it fails.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


Net = Annotated[Path, typer.Option("--net", help="Network file (YAML).")]
Ram = Annotated[
    str | None,
    typer.Option(help="Memory the process may take, such as 8GiB. Default: what is available."),
]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: all cores.")]
Roi = Annotated[
    str | None,
    typer.Option(
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="Only output for these voxels of the volume; an end left out is that of the output.",
    ),
]
Dataset = Annotated[str | None, typer.Option(help="Dataset of a file that holds several.")]
BorderChoice = Annotated[
    Border,
    typer.Option(help="valid: voxels with all their context; same: all, padded beyond the edges."),
]
Dtype = Annotated[OutputType, typer.Option(help="Type of the output; uint8 stores 0..1 as 0..255.")]
AccuracyChoice = Annotated[
    Accuracy,
    typer.Option(help="bfloat16 allows relative errors of up to 0.01 a layer where it is faster."),
]


@app.command()
def infer(
    volume: Annotated[str, typer.Argument(help="HDF5 file, or FILE.h5:/DATASET.")],
    net: Net,
    weights: Annotated[
        Path | None, typer.Option(help="Weights file. Default: the one the network names.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file. Default: VOLUME-NETWORK.h5 in this folder.")
    ] = None,
    dataset: Dataset = None,
    roi: Roi = None,
    border: BorderChoice = "valid",
    pad: Annotated[Pad, typer.Option(help="What is seen beyond the edges.")] = "reflect",
    ram: Ram = None,
    threads: Threads = None,
    dtype: Dtype = "float32",
    accuracy: AccuracyChoice = "float32",
    plan: Annotated[
        Path | None, typer.Option(help="Run this plan, made by znni plan --out.")
    ] = None,
    random_weights: Annotated[
        int | None, typer.Option(metavar="SEED", help="Random weights, to try a network out.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and stop.")] = False,
) -> None:
    """Run a network over a volume and write its dense output."""
    from znni import api, planning
    from znni.progress import show_progress
    from znni.volumes.locate import open_volume, split_dataset

    network = api.load_network(net)
    source = open_volume(volume, dataset)
    api.check_features(source, network)
    region = _parse_roi(roi) if roi else None
    given = _read_plan(plan) if plan else None
    if dry_run and given:
        checked = planning.checked_plan(
            given, network, ram, threads, accuracy, dtype=dtype, input_itemsize=source.itemsize
        )
        typer.echo(_table(checked, accuracy))
        return
    if dry_run:
        found = planning.plan(
            network,
            source.size,
            border=border,
            roi=region,
            dtype=dtype,
            accuracy=accuracy,
            input_itemsize=source.itemsize,
            ram=ram,
            threads=threads,
        )
        typer.echo(_table(found, accuracy))
        return
    out = out or Path(f"{split_dataset(volume)[0].stem}-{network.name}.h5")
    with show_progress() as progress:
        report = api.infer(
            volume,
            network,
            out,
            weights=weights,
            random_seed=random_weights,
            dataset=dataset,
            border=border,
            pad=pad,
            roi=region,
            dtype=dtype,
            accuracy=accuracy,
            plan=given,
            overwrite=overwrite,
            command=shlex.join(["znni", *sys.argv[1:]]),
            progress=progress,
            ram=ram,
            threads=threads,
        )
    typer.echo(f"{out}: {report}")


@app.command()
def plan(
    net: Net,
    volume: Annotated[
        str, typer.Option(help="Extents Z,Y,X, or a volume's file.", metavar="Z,Y,X|FILE")
    ],
    dataset: Dataset = None,
    roi: Roi = None,
    border: BorderChoice = "valid",
    ram: Ram = None,
    threads: Threads = None,
    dtype: Dtype = "float32",
    accuracy: AccuracyChoice = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also save the plan, for znni infer --plan.")
    ] = None,
) -> None:
    """Find the fastest plan, and print what it will take, without running it."""
    from znni import planning
    from znni.shapes import Vec3
    from znni.volumes.locate import open_volume

    if all(part.strip().isdecimal() for part in volume.split(",")):
        size, itemsize = Vec3(*_three_extents(volume)), 4
    else:
        source = open_volume(volume, dataset)
        size, itemsize = source.size, source.itemsize
    found = planning.plan(
        net,
        size,
        border=border,
        roi=_parse_roi(roi) if roi else None,
        ram=ram,
        threads=threads,
        dtype=dtype,
        accuracy=accuracy,
        input_itemsize=itemsize,
    )
    if out:
        _write(out, found)
    typer.echo(found.to_json() if as_json else _table(found, accuracy))


@app.command()
def info(
    file: Annotated[str, typer.Argument(help="A network (YAML) or a volume (HDF5).")],
) -> None:
    """Describe a network or a volume."""
    if Path(file).suffix in (".yaml", ".yml"):
        from znni.network_file import load_network

        typer.echo(_describe(load_network(file)))
    else:
        from znni.volumes.hdf5 import describe_hdf5
        from znni.volumes.locate import split_dataset

        typer.echo(describe_hdf5(*split_dataset(file)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _table(plan: Plan, allowed: Accuracy) -> str:
    """A plan as a table, with a line on its accuracy where there is something to say."""
    from znni.plan_table import plan_table
    from znni.planning import accuracy_note

    note = accuracy_note(plan, allowed)
    return plan_table(plan) + f"\naccuracy      {note}" * bool(note)


def _describe(network: Network) -> str:
    from znni.network import Conv

    lines = [str(network)]
    for layer in network.layers:
        if isinstance(layer, Conv):
            what = f"conv {layer.kernel}, {layer.in_features} -> {layer.out_features} maps"
            lines.append(f"  {layer.name:<8} {what}, {layer.activation}")
        else:
            lines.append(f"  {layer.name:<8} max-pool {layer.window}")
    scaling = network.scaling
    lines.append(f"  input    value * {scaling.scale:g} + {scaling.offset:g}")
    lines.append(f"  weights  {network.weights or 'none named'}")
    return "\n".join(lines)


def _three_extents(text: str) -> tuple[int, int, int]:
    parts = [int(part) for part in text.split(",")]
    if len(parts) != 3:
        raise InvalidInput(f"--volume {text} has {len(parts)} extents; give three: Z,Y,X")
    z, y, x = parts
    return z, y, x


def _parse_roi(text: str) -> tuple[slice, slice, slice]:
    """``z0:z1,y0:y1,x0:x1``; ends may be left out."""
    try:
        ends = [part.split(":") for part in text.split(",")]
        z, y, x = (slice(*(int(end) if end else None for end in (a, b))) for a, b in ends)
    except ValueError:
        raise InvalidInput(f"--roi {text} is not a region; write it as z0:z1,y0:y1,x0:x1") from None
    return z, y, x


def _read_plan(path: Path) -> Plan:
    from znni.plans import Plan

    try:
        return Plan.from_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error.strerror}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}; make one with znni plan --out") from None


def _write(path: Path, found: Plan) -> None:
    try:
        path.write_text(found.to_json())
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None


def main() -> None:
    """Run a command; what goes wrong is one line on stderr and an exit code.

    ``--debug``, anywhere on the line, shows the log and lets a traceback through.
    """
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    logging.basicConfig(level=logging.INFO if debug else logging.WARNING)
    try:
        with stopping_on_signals():
            app(arguments or ["--help"], standalone_mode=False)
    except (ZnniError, Stopped) as error:
        _fail(str(error), error.exit_code, error, debug)
    except typer.TyperException as error:  # an option or argument not understood
        _fail(
            f"{error.format_message().rstrip('.')}; see znni --help", error.exit_code, error, debug
        )
    except MemoryError as error:
        _fail(f"memory ran out: {error}; free some, or give less with --ram", 1, error, debug)
    except OSError as error:
        _fail(str(error), 1, error, debug)
    except Exception as error:
        bug = f"{type(error).__name__}: {error}; a bug: add --debug and report what it shows"
        _fail(bug, INTERNAL_ERROR, error, debug)


def _fail(message: str, code: int, error: BaseException, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    whole = "; ".join([message, *getattr(error, "__notes__", [])])
    typer.echo(f"znni: error: {' '.join(whole.split())}", err=True)
    sys.exit(code)
