"""The library: run a network over an array or a volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.errors import ZnniError
from znni.core.plan_options import check_keywords
from znni.engine.report import Report
from znni.engine.run_state import Progress, no_progress
from znni.inference.inferer import Inferer
from znni.inference.open_run import begin_run
from znni.inference.planning import plan, search
from znni.inference.request import RunArguments, request_for
from znni.inference.session import Session
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import load_weights, random_weights
from znni.plans.job_seconds import SecondsAround

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
              ``znni.core.plan_options.Choices``.

    Raises:
        InvalidInput: something given cannot be used as it is.
        DoesNotFit: no plan stays within ``ram`` and ``gpu_memory``.
        RunFailed: reading the volume or writing the output failed, or the GPU failed.

    If the output was open, the error has a note that says what is left of the output.
    """
    check_keywords(infer, RunArguments, options)
    request = request_for(source, network, out, part, **options)
    return begin_run(request, Session(), waited=waited, progress=progress)()
