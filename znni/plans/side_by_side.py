"""A batch shared between the host's processors and a GPU, which compute at the same time.

The idea is from Caffe con Troll (Hadjis, Abuzaid, Zhang and Ré, 2015). It gives each device a part
of the batch in proportion to its speed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.machine.arena import new_output, output_into
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.composed import Composed, Piece
from znni.plans.composition import AtOnce, ShareBy
from znni.plans.cost import Cost, Memory
from znni.plans.nominal_time import nominal_time
from znni.plans.primitive import Catalogue, Run, UsesGpu


@dataclass(frozen=True)
class SideBySide(Composed):
    """Two primitives at the same time, as one.

    Attributes:
        on_host: the first items, by the host's processors.
        on_gpu: the other items, by a primitive of the host that computes on a GPU.
    """

    on_host: Piece
    on_gpu: Piece

    @property
    def parts(self) -> tuple[Piece, Piece]:
        """Both pieces."""
        return self.on_host, self.on_gpu

    @property
    def composition(self) -> AtOnce:
        """The pieces with the names of their primitives, as a plan stores them."""
        return AtOnce(*(ShareBy(it.items, it.primitive.name) for it in self.parts))

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return both primitives' work, workspace and memory, and the time of the slower one.

        The time is no less than the time of both primitives' traffic together. Copies to and from a
        GPU use the host's memory too.
        """
        out = self.out(layer, shape)
        costs = [share.primitive.cost(layer, share.of(shape)) for share in self.parts]
        memories = [cost.memory for cost in costs]
        workspace = sum(memory.workspace for memory in memories)
        moved = sum(cost.bytes_moved for cost in costs)
        alone = (
            nominal_time(share.primitive, cost)
            for share, cost in zip(self.parts, costs, strict=True)
        )
        return Cost(
            flops=sum(cost.flops for cost in costs),
            bytes_moved=moved,
            memory=Memory(
                resident=sum(memory.resident for memory in memories),
                working=shape.nbytes + out.nbytes + workspace,
                workspace=workspace,
                gpu_resident=sum(memory.gpu_resident for memory in memories),
                gpu_working=sum(memory.gpu_working for memory in memories),
            ),
            efficiency=1.0,
            seconds=max(*alone, moved / self.device.bandwidth),
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare both primitives."""
        out = self.out(layer, shape)
        first, second = (
            share.primitive.build(layer, share.of(shape), weights) for share in self.parts
        )
        here = self.on_host.items
        placed = here * out.n // shape.n

        def run_into(run: Run, x: Float32, y: Float32) -> None:
            with output_into(y):
                run(x)

        def run_both(x: Float32) -> Float32:
            y = new_output(out)
            # The other thread sees the GPU's arena. It takes nothing from the host's arena, which
            # serves one thread only.
            seen = copy_context()
            with ThreadPoolExecutor(1, thread_name_prefix="znni-gpu") as beside:
                on_gpu = beside.submit(seen.run, run_into, second, x[here:], y[placed:])
                run_into(first, x[:here], y[:placed])
            on_gpu.result()
            return y

        return run_both


def shared_out(catalogue: Catalogue, chosen: AtOnce) -> SideBySide | None:
    """Return the two primitives as one; None unless the catalogue has each for its device."""
    shares = []
    for share, computes_on_gpu in ((chosen.on_host, False), (chosen.on_gpu, True)):
        primitive = catalogue.get(share.primitive)
        if primitive is None or primitive.device.has_own_memory or share.items < 1:
            return None
        if isinstance(primitive, UsesGpu) != computes_on_gpu:
            return None
        shares.append(Piece(1, share.items, primitive))
    return SideBySide(*shares)
