"""The tables and figures of five papers, one line each: their number, ours, and the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import paper_numbers as ours
from paper_figures import FIGURES, Records
from performance_tables.parts import caption

from bench.table import markdown

DIAGRAM = "a diagram"
TRAINING = "no: znni does not train, so it has no backward passes"


class Evaluation(NamedTuple):
    """A table or figure of a paper.

    Attributes:
        paper: the paper.
        place: its table or figure.
        what: its subject.
        theirs: the paper's number.
        ours: our number, made from records, or the reason why there is none.
        command: the arguments of ``python -m bench``, or a command that begins with ``znni``.
    """

    paper: str
    place: str
    what: str
    theirs: str
    ours: str | Callable[[Records], str]
    command: str = ""


def evaluations(records: Records) -> str:
    """Return all tables and figures of the papers as a table."""
    table = markdown(
        [
            {
                "paper": it.paper,
                "table or figure": f"{it.place}: {it.what}",
                "theirs": it.theirs,
                "ours": it.ours if isinstance(it.ours, str) else it.ours(records),
                "command": f"`{it.command}`" if it.command else "",
            }
            for it in EVALUATIONS
        ]
    )
    used = [*ours.USED, *ours.planes(records)]
    return f"{table}\n\n{caption(records, used, 'Measured or predicted')}"


ZNNI, CUDNN, MICRO = "ZNNi", "cuDNN", "µ-cuDNN"
FBFFT, TROLL = "fbfft", "Caffe con Troll"
EVALUATIONS = (
    Evaluation(ZNNI, "Figure 1", "primitives", DIAGRAM, "the catalogue", "exercise"),
    Evaluation(
        ZNNI, "Figure 2, III", "pruned FFTs of kernels over padded ones", "CPU 5x, GPU 10x",
        ours.pruned, "paper pruned-ffts",
    ),
    Evaluation(
        ZNNI, "Tables I and II", "operations and memory of a layer", "formulas",
        "each primitive declares both, and a test measures the memory", "layers",
    ),
    Evaluation(ZNNI, "Figure 3", "tasks of a layer", DIAGRAM, "`fft_task_parallel`"),
    Evaluation(ZNNI, "Table III", "networks", "four", "the same, in `networks/`", "network"),
    Evaluation(
        ZNNI, "Figure 4", "operations saved by fragments, for batches of inputs",
        "two poolings: one input is best; one: perhaps several", ours.operations,
        "paper fft-speedups",
    ),
    Evaluation(
        ZNNI, "Figure 5", "throughput over the size of patches", "a plot; larger is faster",
        ours.growth, "paper sizes",
    ),
    Evaluation(
        ZNNI, "Table IV", "fastest GPU primitive of each layer",
        "cuDNN for small kernels, FFT for large ones", ours.layers_alike, "paper machine-plans",
    ),
    Evaluation(ZNNI, "Figure 6", "a layer in sub-layers", DIAGRAM, "`host_ram_...`"),
    Evaluation(
        ZNNI, "Figure 7", "throughput over memory, for each strategy",
        "a plot, which ends at Table V's rates", ours.over_memory, "paper sizes",
    ),
    Evaluation(
        ZNNI, "Figure 8", "timeline of the stages", DIAGRAM, "a Chrome trace of any run",
        "znni infer ... --trace FILE",
    ),
    Evaluation(
        ZNNI, "Table V", "strategies, best of each network", ours.published_best("ZNNi CPU-GPU"),
        ours.strategies, "paper run-strategies",
    ),
    Evaluation(
        ZNNI, "Table V", "all subsamplings by cuDNN, beside fragments",
        "n337 5.3x, n726 0.5x (ELEKTRONN)", ours.subsamplings, "paper subsamplings",
    ),
    Evaluation(
        ZNNI, "Table V", "four sockets, 72 cores", ours.published_best("ZNNi CPU-only"),
        ours.four_sockets, "paper machine-plans",
    ),
    Evaluation(CUDNN, "Table 1, Figure 1", "parameters, and lowering", DIAGRAM, "`lowered_...`"),
    Evaluation(
        CUDNN, "Table 2, Figure 2", "layers, beside Caffe and cuda-convnet2",
        "1.0x to 1.4x of Caffe, 0.8x to 2.3x of cuda-convnet2",
        ours.layers_of_cudnn, "paper planes",
    ),
    Evaluation(
        CUDNN, "Table 3", "share of the peak on two architectures", "23 to 35 %, 30 to 51 %",
        ours.shares_of_peak, "paper planes",
    ),
    Evaluation(
        CUDNN, "Section 3.2", "kernels for other architectures", "no retuning",
        "[kernels for older chips](gpu.md)", "chips",
    ),
    Evaluation(CUDNN, "Table 4", "training Caffe's network", "1.36x", TRAINING),
    Evaluation(
        MICRO, "Figures 1, 8 and 9", "one layer within a workspace", "2.33x at 64 MiB",
        ours.one_layer, "paper micro-batches",
    ),
    Evaluation(MICRO, "Figures 2 to 7", "convolution, micro-batches, WR and WD", DIAGRAM,
               "[the search](../explanation/search.md)"),
    Evaluation(
        MICRO, "Figures 10, 11 and 13",
        "three networks within 8, 64 and 512 MiB a layer, on one GPU here",
        "1.1x to 1.8x at 64 MiB, training", ours.engines, "paper micro-batches --device gpu",
    ),
    Evaluation(
        MICRO, "Table I", "three GPUs for training", "their data", TRAINING,
    ),
    Evaluation(
        MICRO, "Figure 12", "memory of each layer", "up to 3.4x less",
        ours.workspaces, "paper micro-batches",
    ),
    Evaluation(
        MICRO, "Figures 13 and 14", "memory divided jointly", "1.24x over equal shares",
        ours.joint, "paper shares",
    ),
    Evaluation(
        FBFFT, "Table 1", "steps of a layer", "a list",
        "[tiled FFT](../explanation/tiled-fft.md)",
    ),
    Evaluation(
        FBFFT, "Table 2, Figures 1 to 6", "FFT over cuDNN, for sizes of layers",
        "up to 1.8x (3²), 5.3x (5²), 23.5x (13²)", ours.region_gains, "paper regions --device gpu",
    ),
    Evaluation(FBFFT, "Table 3", "iterations of training", "1.5x", TRAINING),
    Evaluation(
        FBFFT, "Table 4", "five layers, forward", "1.5x to 7.6x over cuDNN",
        ours.layers_of_fbfft, "paper planes",
    ),
    Evaluation(
        FBFFT, "Figures 7 and 8, Table 5", "own FFT over cuFFT, and its passes", "1.4x to 5x",
        "no such passes: transforms of tiles are fused with the layout of products",
        "layers --device gpu",
    ),
    Evaluation(FBFFT, "Figure 9", "decimation", DIAGRAM, "`codelets.py`"),
    Evaluation(TROLL, "Figures 1, 6 and 7", "lowering, its costs, AlexNet", DIAGRAM,
               "`lowered_...`"),
    Evaluation(
        TROLL, "Figures 2 and 3", "batches lowered together", "4.5x on 8 cores",
        ours.batching, "paper batching",
    ),
    Evaluation(TROLL, "Figure 4", "training on rented machines", "price", TRAINING),
    Evaluation(
        TROLL, "Figure 5", "several GPUs", "4 GPUs: 3.1x",
        ours.several_gpus, "end-to-end",
    ),
    Evaluation(
        TROLL, "Figure 8", "types of lowering, for ratios of maps", "up to 10x, either way",
        ours.lowering, "paper lowering",
    ),
    Evaluation(
        TROLL, "Figure 9", "part of a batch for the GPU",
        "best with 83 % on the GPU, 1.2x over the GPU alone; the planned share is within 5 %",
        ours.shared, "paper side-by-side",
    ),
)  # fmt: skip

PAPER_TABLES: dict[str, Callable[[Records], str]] = {
    "evaluations": evaluations,
    **FIGURES,
}
