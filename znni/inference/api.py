"""The library: run a network over an array or a volume."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, ZnniError
from znni.core.options import check_keywords
from znni.core.processors import DeviceKind
from znni.core.volume import NewOutput, Output, Step
from znni.engine.blocks import Blocks
from znni.engine.recheck import recheck
from znni.engine.report import Report
from znni.engine.run_state import Progress, RunState, no_progress
from znni.engine.stage_chain import nothing_to_do
from znni.engine.stopwatch import Stopwatch
from znni.inference.inferer import Inferer
from znni.inference.model_choice import open_faster
from znni.inference.output_attributes import as_run, provenance
from znni.inference.parts import memory_ran_out, share_of, why_no_blocks
from znni.inference.plan_choice import check_choices, tell_nobody
from znni.inference.planning import accuracy_note, plan, search
from znni.inference.request import OpenRequest, Request, RunArguments, request_for
from znni.inference.resuming import agreed_plan, identified, remaining_of, resume_advice
from znni.inference.session import Session
from znni.machine.arrays import high_water_mark, reset_high_water_mark
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, load_weights, random_weights
from znni.plans.job_seconds import SecondsAround
from znni.plans.plan import Plan
from znni.primitives.cpu.common.lazy_kernel import compiled_seconds
from znni.volumes.grid_attributes import grid_attributes
from znni.volumes.locate import open_output, writer_at
from znni.volumes.writer import Share

__all__ = [
    "Inferer",
    "Report",
    "ZnniError",
    "infer",
    "load_network",
    "load_weights",
    "plan",
    "random_weights",
    "search",
]


log = logging.getLogger("znni")

# Activations whose values are from 0 to 1.
SHARES = ("sigmoid", "softmax")


@checks_types
def infer(
    source: str | Path | ArrayLike,
    network: Network | str | Path,
    out: str | Path | Any,
    *,
    waited: float | SecondsAround = 0.0,
    progress: Progress = no_progress,
    part: str | None = None,
    **options: Unpack[RunArguments],
) -> Report:
    """Run a network over a volume, block by block.

    Args:
        source: a file (HDF5, OME-Zarr or plain Zarr, TIFF, NIfTI, NumPy), ``file.h5:/dataset``,
            the URL of a Zarr, or anything with shape, dtype and slicing. It has axes (z, y, x) or
            (f, z, y, x), and holds integers or floats.
        network: a network, or its YAML file.
        out: a file to make, by its ending: HDF5, OME-Zarr, OME-TIFF, NIfTI or NumPy. Or an array
            (f', z, y, x) to write into.
        waited: the seconds that the user waited before this call, or those of each phase. They
            count in the times of the report and the output.
        progress: called after each block with the output voxels written and those wanted. If the
            volume is read for its statistics before, it is called with the voxels read and to read.
            An exception that it raises stops the run. The finished blocks stay, and the same call
            goes on from there.
        part: compute one part of the output, as ``0/8``: the first of eight. Each part may be
            computed by a process of its own, on any machine that sees input and output. When all
            are finished, ``znni.finish`` completes the output, an OME-Zarr.
        options: those of ``znni.inference.request.RunArguments``. Each may be left out:

            - ``weights``: parameters, or their file; by default the file that the network names.
            - ``random_seed``: use random weights instead.
            - ``plan``: use this plan, or the plan in this file, instead of searching.
            - ``command``: the command line, which is noted in the output.
            - ``dataset``: the dataset to read, if a file has several.
            - ``channel``: the only map to read: its number, or its name if the file has names.
            - ``time``: number of the point in time, if there are several; ``all`` if they are the
              maps that the network takes.
            - ``invert``: exchange light and dark: the type's largest value less the value; of
              floats, 1 less the value.
            - ``voxel_size``: extents of a voxel, as ``0.5,0.1,0.1um``, or ``40nm`` for all axes, if
              the file has none or wrong ones. Without a unit, the file's unit is taken.
            - ``any_spacing``: run a network over voxels of another size than those that it was
              trained on; by default that is an error.
            - ``border``: ``valid`` (the default) or ``same``.
            - ``pad``: what the network sees beyond the edges with ``same``: ``reflect`` (the
              default), ``edge`` or ``constant`` (zeros: the default of windows).
            - ``roi``: voxels of the volume for which output is wanted, as
              ``numpy.s_[10:20, :, 5:]``; by default all.
            - ``mask``: a volume with one map and the same extents. Blocks in which all its voxels
              are 0 are not computed and hold 0.
            - ``dtype``: type of the output: ``float32`` (the default), ``float16`` or ``uint8``,
              which stores 0..1 as 0..255.
            - ``labels``: store the label of the largest map, as uint8 or uint16, instead of values.
              The network file has the labels; without them they are the maps' numbers.
            - ``threshold``: store 1 where a value is above it, and else 0, as uint8.
            - ``overwrite``: replace an existing output file, or an unfinished output of something
              else; by default that is an error.
            - ``resume``: continue an unfinished output of the same run (``NAME.partial``); this is
              the default. False starts afresh.
            - ``compression``: how chunks of a Zarr are compressed: ``zstd`` (the default),
              ``gzip`` or ``none``.
            - ``sharded``: store many chunks of a Zarr in one file.
            - ``pyramid``: also store coarser resolutions of an OME-Zarr or OME-TIFF: means of
              values, most frequent labels. By default if it has more than 256 x 256 x 256 voxels.
            - ``ram``, ``threads``, ``device``, ``theta``, ``gpu_memory``, ``gpus``, ``accuracy``,
              ``costs`` and ``micro_batches``: what the plan may use, as in
              ``znni.core.options.Choices``.

    Raises:
        InvalidInput: something given cannot be used as it is.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
        RunFailed: reading the volume or writing the output failed, or the GPU failed.

    If the output was open, the error has a note that says what is left of the output.
    """
    check_keywords(infer, RunArguments, options)
    request = request_for(source, network, out, part, **options)
    return compute(request, Session(), waited=waited, progress=progress)()


def compute(
    request: Request,
    session: Session,
    *,
    waited: float | SecondsAround = 0.0,
    progress: Progress = no_progress,
    reading: Progress | None = None,
    opened: Step = nothing_to_do,
    begun: Callable[[Plan, int, int], None] = tell_nobody,
) -> Callable[[], Report]:
    """Run a network over a volume, with the errors of ``infer``.

    Args:
        request: the run.
        session: finds the plan and makes it ready. It may wait for the disk in a thread.
        waited: as for ``infer``.
        progress: as for ``infer``.
        reading: called instead while the volume is read for its statistics; None: ``progress``.
        opened: called when input and output are open, and before anything is computed.
        begun: called once, before the first block is computed. It takes the plan, the voxels that
            are written already, and those wanted.

    Returns:
        A function that waits for the disk, completes the output and returns the report. It is to be
        called once, and raises ``RunFailed`` if the output cannot be completed.
    """
    before = waited if isinstance(waited, SecondsAround) else SecondsAround(start=waited)
    stopwatch = Stopwatch(before)
    asked = _open(request, stopwatch)
    made = request.plan
    with stopwatch.during("opening"):
        weights = session.weights_for(asked.network, request.weights, request.random_seed)
        share = share_of(asked)
        wanted, output = _open_output(asked, weights, share)
        if asked.stored.dtype == "uint8" and asked.network.last_activation not in SHARES:
            session.warn("uint8 output holds 0 to 1; what the network gives beyond that is clipped")
    job, choices, dtype = asked.job, asked.choices, asked.stored.dtype
    last_steps = list[tuple[Step, Step]]()
    with _abandoning(output), session.processes.running(), ExitStack() as ending:
        opened()
        plan, earlier, asked = agreed_plan(
            output, made, asked, session.plan_for, stopwatch, reading or progress
        )
        with stopwatch.during("opening"):
            blocks = Blocks(asked.volume, job, asked.network, weights, asked.mask)
            expected = session.expected(plan)
            attributes = provenance(plan, weights, asked, expected)
            attributes |= grid_attributes(wanted.grid)
            output.describe(attributes, plan.patch)
            remaining = remaining_of(output, job, plan, progress, share and share(plan.patch))
        left = remaining.voxels
        begun(expected, remaining.total - left, remaining.total)
        state = RunState(blocks, output, dtype, remaining, progress, asked.labels)

        smaller = partial(_smaller, session, output, asked)
        runner = session.runner(plan, weights, session.times, asked.stored)
        compiled_before = compiled_seconds()
        reset_high_water_mark()
        spent = recheck(runner, state, output, job, choices.accuracy, smaller)
        spent += runner.run(state, smaller, last=not session.keeps)
        gpu_peak = runner.gpu_peak_memory if plan.gpu_memory else 0
        taken = runner.workers_memory + high_water_mark()
        measured = as_run(
            runner.plans, spent + stopwatch.seconds, taken, blocks.skipped, gpu_peak, earlier,
            output.begun.plan,
        )  # fmt: skip
        with stopwatch.during("finishing"):
            ending.enter_context(session.releasing(runner))
            output.finish(measured, lambda *both: last_steps.append(both))
        report = Report(
            expected, tuple(runner.plans[1:]), left, spent, taken, attributes | measured,
            accuracy_note(runner.plans[-1], choices.accuracy), remaining.total - left,
            blocks.skipped, gpu_peak, compiled_seconds() - compiled_before,
            why_no_blocks(asked, plan),
        )  # fmt: skip
        waits = [(session.begin_to_wait(wait), name) for wait, name in last_steps]
        released = ending.pop_all()

    def complete() -> Report:
        with stopwatch.during("finishing"):
            with _abandoning(output), released:
                for wait, name in waits:
                    wait()
                    name()
            session.done(plan, choices)
        found = replace(report, time=report.time + stopwatch.seconds)
        log.info("%s", found)
        session.note_phases(found, plan, whole=not (made or earlier or share))
        return found

    return complete


def _smaller(
    session: Session,
    output: Output,
    asked: OpenRequest,
    failed: Plan,
    short: DeviceKind,
) -> Plan:
    """Return the plan that an output goes on with after memory ran out, and note it there.

    Raises:
        DoesNotFit: there is none, or the output is one of several parts.
    """
    if asked.request.part is not None:
        raise memory_ran_out(failed, short)
    found = session.smaller(failed, short, asked)
    output.note_plan(found.to_json())
    return found


@contextmanager
def _abandoning(output: Output) -> Iterator[None]:
    """Abandon an output if there is an error, which is told what is left of it."""
    try:
        yield
    except BaseException as error:
        error.add_note(output.abandon(resume_advice(error)))
        raise


def _open(request: Request, stopwatch: Stopwatch) -> OpenRequest:
    """Open a request, and count how long that takes."""
    with stopwatch.during("opening"):
        network = request.loaded
    with stopwatch.during("importing" if network.models else "opening"):
        return open_faster(replace(request, network=network))


def _open_output(
    asked: OpenRequest, weights: Weights, share: Share | None
) -> tuple[NewOutput, Output]:
    """Return the description of an output, and the output, opened."""
    source, out, mask = asked.request.source, asked.request.out, asked.region.mask
    wanted = identified(asked, weights) if isinstance(out, str | Path) else asked.wanted
    output: Output
    try:
        if share is None:
            output = open_output(out, source, wanted, mask)
        else:
            output = writer_at(out, source, mask).join(wanted, share)
    except InvalidInput:
        check_choices(asked)  # a wrong option is reported first: the output may be right
        raise
    return wanted, output
