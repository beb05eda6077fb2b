"""Layers of planes that two papers measure, by the fastest primitive of each family.

These are cuDNN's Table 2, with Figure 2 and Table 3, and fbfft's Table 4, forward. A plane is a
volume of one plane here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench import session
from bench.layers import layer
from bench.paper.regions import rows_of_families
from bench.record import Row
from bench.rounds import Effort
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv

CUDNN, FBFFT = "cuDNN, Tables 2 and 3", "fbfft, Table 4"


@dataclass(frozen=True)
class PlaneLayer:
    """A layer of the papers.

    Attributes:
        name: its name there.
        figure: the paper and the tables.
        maps: of its input.
        extent: pixels of its input per axis.
        out_maps: of its output.
        kernel: pixels per axis.
    """

    name: str
    figure: str
    maps: int
    extent: int
    out_maps: int
    kernel: int


BOTH = f"{CUDNN}; {FBFFT}"
LAYERS = (
    PlaneLayer("layer 1", BOTH, 3, 128, 96, 11),
    PlaneLayer("layer 2", CUDNN, 96, 64, 128, 9),
    PlaneLayer("layer 2", FBFFT, 64, 64, 64, 9),
    PlaneLayer("layer 3", BOTH, 128, 32, 128, 9),
    PlaneLayer("layer 4", BOTH, 128, 16, 128, 7),
    PlaneLayer("layer 5", CUDNN, 128, 13, 384, 3),
    PlaneLayer("layer 5", FBFFT, 384, 13, 384, 3),
)


def planes_command(
    batch: session.Batches = [128],  # noqa: B006
    device: session.Device = "cpu",
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 1.0,
    out: session.Out = None,
) -> None:
    """Measure the layers of cuDNN's Table 2 and of fbfft's Table 4.

    Rows have the operations of direct convolution that a second would take, and their share of the
    arithmetic of the machine.
    """
    machine, effort = session.machine_with(device, threads), Effort(repeats, budget)
    ceilings = session.ceilings_with(device, machine.host.threads)

    def measured() -> Iterator[list[Row]]:
        for images in batch:
            for it in LAYERS:
                kernel = Vec3(1, it.kernel, it.kernel)
                conv = layer(kernel, it.maps, it.out_maps)
                assert isinstance(conv, Conv)
                shape = Shape5.of(images, it.maps, Vec3(1, it.extent, it.extent))
                about: Row = {
                    "figure": it.figure,
                    "case": f"{it.name}, {it.maps} -> {it.out_maps} maps of {it.extent}^2, "
                    f"kernel {it.kernel}^2, {images} images",
                }
                outputs = images * it.out_maps * (it.extent - it.kernel + 1) ** 2
                flops = 2.0 * outputs * it.maps * kernel.volume
                rows = rows_of_families(machine, device, conv, shape, effort, about)
                yield [
                    row | {"share_of_peak": flops / row["seconds"] / ceilings.flops} for row in rows
                ]

    session.report_all("evaluations", measured(), [ceilings], out)
