"""``znni plan``: find the fastest plan, explain it, and predict what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from znni.cli import options
from znni.cli.exclusions import check_not_given
from znni.cli.options import WindowOptions, machines_option, only, output_option
from znni.cli.values import EXTENTS, are_extents, in_windows, look_like_extents, three_extents
from znni.cli.words import echo
from znni.core.errors import InvalidInput
from znni.core.loading import begin, is_own_process
from znni.core.option_types import Accuracy
from znni.core.plan_options import Choices
from znni.core.run_options import InputOptions, RegionOptions, ValueOptions
from znni.importing.nnunet_folder import is_results

if TYPE_CHECKING:
    from znni.core.shapes import Vec3
    from znni.inference.text_cache import CachedText
    from znni.network.network import Network
    from znni.plans.plan import Plan
    from znni.plans.plan_text import PlanText
    from znni.volumes.array import ArrayVolume


@options.grouped
def plan(
    net: Annotated[
        Path,
        typer.Option(
            help="Network file (YAML), a name that znni networks lists, or a model (.onnx or .pt2)."
        ),
    ],
    volume: Annotated[
        str,
        typer.Option(
            help="Extents Z,Y,X (of float32 values), or the file of a volume.", metavar="Z,Y,X|FILE"
        ),
    ],
    *,
    read: InputOptions = only("dataset", "channel", "time", "voxel_size", "any_spacing"),
    region: RegionOptions = only("roi", "border"),
    windows: WindowOptions,
    values: ValueOptions,
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Machine to plan for: a known one such as rtx4090, or a machine file. An unknown "
            "name lists the known ones. Default: this machine.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        machines_option(
            metavar="FILE|local:N",
            help="Predict time and cost of a run on the machines of this cluster file.",
        ),
    ] = None,
    limits: Choices,
    explain: Annotated[
        bool, output_option("--explain", help="Also print why each layer's primitive won.")
    ] = False,
    alternatives: Annotated[
        int | None,
        output_option(
            metavar="N", min=1, help="Also rank the N fastest plans, one per patch size."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        output_option(
            help="Also draw the plan among its neighbours (.png, .svg or .pdf). A large volume "
            "takes about 20 seconds."
        ),
    ] = None,
    as_json: Annotated[bool, output_option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also save the plan, for znni infer --plan. Its alternatives go beside it, as "
            "plan-2.json and so on."
        ),
    ] = None,
    overwrite: Annotated[
        bool, output_option("--overwrite", help="Replace an existing plan.")
    ] = False,
    fresh: Annotated[
        bool, output_option("--fresh", help="Search anew, even if the plan is kept in the cache.")
    ] = False,
) -> None:
    """Print the fastest plan with its predicted time and memory, without running it."""
    from znni.machine.gpus import detect_gpus

    looks = machine is None and limits.device != "cpu" and not cluster
    begin(detect_gpus if looks else None)
    from znni.inference import text_cache
    from znni.machine.machine_choice import machine_for

    if cluster:
        check_not_given(
            "is for the plan of one machine; leave it out, and describe the machines in the "
            "cluster file",
            {
                "machine": machine, "explain": explain, "alternatives": alternatives, "plot": plot,
                "json": as_json, "out": out, "ram": limits.ram, "threads": limits.threads,
                "gpus": None if limits.gpus == "1" else limits.gpus,
            },
        )  # fmt: skip
    if plot:
        from znni.inference.plan_plot import check_drawable, plot_plan

        check_drawable(plot)
    size, stored, given = opened(volume, read)
    here = None
    if not cluster:
        here = machine_for(machine, limits.ram, limits.threads, limits.gpu_memory, limits.device)
    say = typer.echo if as_json else echo  # JSON stays as it is
    file = None
    if here and is_own_process() and not (explain or alternatives or plot or out):
        asked = (size, stored, _voxels(given, read), region, values, windows, limits, as_json)
        file = text_cache.text_file(net, here, asked, exact=as_json)
    if file and not fresh and (known := text_cache.cached_text(file)):
        say(known)
        return
    from znni.calibration.compiled_notes import about_compiling
    from znni.inference import planning

    network, warned = loaded(net, windows, given, read)
    if models := bool(network.models):
        network = formed(network, size, limits, as_json=as_json)
    if cluster:
        from znni.cluster.forecast import forecast

        echo(forecast(network, size, cluster, region, values, limits, stored))
        return
    with text_cache.warnings_of_znni() as warnings:
        search = planning.search(
            network,
            size,
            border=region.border,
            roi=region.roi,
            machine=here,
            input_dtype=stored,
            **vars(values),
            **vars(limits),
        )
        found = planning.fastest(search, alternatives or 1, fresh=fresh)
        plans = list(map(planning.as_here, found))
        best = plans[0]
        text = best.to_json() if as_json else _cached_text(found[0], limits.accuracy)
    if out:
        from znni.plans.plan_file import save_plans

        save_plans(out, plans, overwrite=overwrite)
    say(str(text))
    if file and not (models or warnings or warned or about_compiling(best)):
        text_cache.store_text(file, text)
    if alternatives:
        from znni.plans.plan_text import ranking

        echo(f"\n{ranking(plans)}", err=as_json)
    if explain:
        echo(f"\n{planning.explain(search, best)}", err=as_json)
    if plot:
        plot_plan(planning.look_around(search, best), plot)


def opened(volume: str, read: InputOptions) -> tuple[Vec3, str, ArrayVolume | None]:
    """Return the extents of the volume to plan for, the type of its values, and the opened file."""
    if are_extents(volume):
        return three_extents(volume), "float32", None
    if look_like_extents(volume) and not Path(volume).exists():
        raise InvalidInput(
            f"--volume {volume} is no file, and has no extents; give a volume, or {EXTENTS}"
        )
    from znni.volumes.locate import open_volume

    source = open_volume(
        volume, read.dataset, channel=read.channel, time=read.time, voxel_size=read.voxel_size
    )
    return source.size, source.dtype.name, source


def _voxels(volume: ArrayVolume | None, read: InputOptions) -> object:
    """Return all that the check of a volume's voxels depends on."""
    if volume is None:
        return None
    return volume.grid.scale, volume.grid.units, volume.assumed, read.any_spacing


def loaded(
    net: Path, windows: WindowOptions, volume: ArrayVolume | None, read: InputOptions
) -> tuple[Network, list[str]]:
    """Return the network, and the warnings about the voxels of its volume."""
    from znni.inference.spacing import check_spacing
    from znni.inference.text_cache import warnings_of_znni
    from znni.network.network_file import load_network

    if net.is_dir() and is_results(net):
        raise InvalidInput(
            f"{net}: is a folder of nnU-Net's results, whose plan depends on a whole scan; give "
            f"znni infer SCAN --net {net} --dry-run"
        )
    network = in_windows(load_network(net), windows)
    with warnings_of_znni() as warned:
        if volume:
            try:
                check_spacing(network, volume, read)
            except InvalidInput as error:
                if network.case:
                    error.add_note(
                        f"--case is an option of znni infer: znni infer SCAN --net {net} --case "
                        f"--dry-run plans a whole case"
                    )
                raise
    return network, warned


def formed(network: Network, size: Vec3, limits: Choices, *, as_json: bool) -> Network:
    """Return a network of a model in the form that is faster, and say why it is."""
    from znni.inference.model_choice import chosen

    choice = chosen(network, size, limits)
    if choice.why:
        echo(choice.why, err=as_json)
    return choice.network


def plan_text(plan: Plan, allowed: Accuracy) -> str:
    """Return a plan as a table, plus a line about its accuracy if that needs one."""
    return _text(plan, allowed).around(plan.time.around.noted)


def _text(plan: Plan, allowed: Accuracy) -> PlanText:
    """Return what ``plan_text`` returns, without the figures that depend on what runs note."""
    from znni.calibration.compiled_notes import about_compiling
    from znni.inference.planning import accuracy_note
    from znni.plans.plan_text import text_of

    notes = {"first run": about_compiling(plan), "accuracy": accuracy_note(plan, allowed)}
    return text_of(plan, [f"{name:<14}{note}" for name, note in notes.items() if note])


def _cached_text(plan: Plan, allowed: Accuracy) -> CachedText:
    """Return the text of a plan, which tells the seconds that runs noted here."""
    from znni.calibration.phase_notes import kind_of
    from znni.inference.text_cache import CachedText

    kind = None if plan.machine.absent else kind_of(plan)
    return CachedText(_text(plan, allowed), plan.time.around, kind)
