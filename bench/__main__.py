"""``python -m bench layer ...``: measure, print a table, save the JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench import layers, networks
from bench.layers import compare_layer, layer
from bench.networks import compare_network
from bench.record import save, table
from znni.machine import detect_machine
from znni.network_file import load_network
from znni.shapes import Shape5, Vec3

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.callback()
def about() -> None:
    """Side-by-side measurements."""


@app.command("layer")
def layer_command(
    kernel: Annotated[list[int], typer.Option(help="Kernel extent; repeat for several.")],
    size: Annotated[int, typer.Option(help="Input voxels per axis.")] = 48,
    batch: Annotated[int, typer.Option(help="Inputs times fragments.")] = 1,
    features: Annotated[int, typer.Option(help="Input maps.")] = 80,
    out_features: Annotated[int, typer.Option(help="Output maps.")] = 80,
    only: Annotated[list[str] | None, typer.Option(help="A primitive; repeat for more.")] = None,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
    repeats: Annotated[int, typer.Option(help="Counted rounds.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Save the JSON here.")] = None,
) -> None:
    """Every primitive on one convolution, beside PyTorch's."""
    machine = detect_machine(threads=threads)
    rows = []
    for extent in kernel:
        conv = layer(Vec3.of(extent), features, out_features)
        shape = Shape5.of(batch, features, Vec3.of(size))
        rows += compare_layer(machine, conv, shape, only or [], repeats)
    typer.echo(table(rows, layers.COLUMNS))
    if out:
        save(out, rows)


@app.command("network")
def network_command(
    net: Annotated[list[Path], typer.Option(help="Network file; repeat for several.")],
    size: Annotated[int, typer.Option(help="Voxels per axis of the volume planned for.")] = 512,
    ram: Annotated[float, typer.Option(help="GiB that a plan may take.")] = 16.0,
    peer_patch: Annotated[int, typer.Option(help="PyTorch's patch over total pooling.")] = 4,
    threads: Annotated[int | None, typer.Option(help="Worker threads.")] = None,
    repeats: Annotated[int, typer.Option(help="Counted rounds.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Save the JSON here.")] = None,
) -> None:
    """The best plan's patch for whole networks, beside PyTorch's."""
    machine = detect_machine(ram=int(ram * 2**30), threads=threads)
    rows = []
    for path in net:
        network = load_network(path)
        rows += compare_network(network, machine, Vec3.of(size), peer_patch, repeats)
        typer.echo(table(rows, networks.COLUMNS))
    if out:
        save(out, rows)


if __name__ == "__main__":
    app()
