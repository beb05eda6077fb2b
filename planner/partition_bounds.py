"""Lower bounds on the memory and the time of one device's layers, from arrays and some prices."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

from planner.bare_steps import bare_step
from planner.partition import Partition
from planner.step_options import StepOptions
from znni.core.shapes import FLOAT_BYTES, ZERO, Shape5, extent, resized
from znni.network.layers import Conv, Pool
from znni.network.node import Node
from znni.plans.rewrites.fusion import Fusion
from znni.plans.swept import planes_kept

# Sums in another order differ in their last digits. Limits are larger by this factor.
ROUNDED = 1 + 1e-9

# Prices seldom raise the bounds of convolutions by more than this share of them. If a limit is
# farther away, they are not worth their time. Blocks of sweeps are thin, so their prices raise the
# bounds more, by up to half.
MOST_GAIN = 0.25
MOST_GAIN_OF_SWEEPS = 1.0


class PartitionBounds(NamedTuple):
    """Lower bounds for the layers of a device, in any segments.

    Attributes:
        options: the source of prices.
        fusible: the layers that may be one step.
        is_packed: whether values may be packed between the layers.
        value_bytes: the least bytes of a value between the layers.
    """

    options: StepOptions
    fusible: Collection[Fusion]
    is_packed: bool
    value_bytes: int

    @property
    def _fused(self) -> set[str]:
        """The values that no step stores if each fusion is one step."""
        return {name for it in self.fusible for name in it.between}

    def working(self, partition: Partition) -> int:
        """Return a lower bound on the bytes of the layers' arrays.

        A convolution takes the input and the output of one fragment. If a pooling follows, one of
        its fragments may need fewer voxels of that output. A convolution that may be one step with
        other layers does not count, unless the step's output is as large.
        """
        fused = {name for it in self.fusible if not it.overwrites for name in it.between}
        least, smaller = 0, ZERO
        for node in reversed(partition.nodes if partition.shapes else ()):
            if isinstance(node.layer, Pool):
                smaller = node.layer.window - 1
            elif isinstance(node.layer, Conv) and node.name not in fused:
                shapes = [partition.shapes[name] for name in (*node.inputs, node.name)]
                if partition.storage:
                    arrays = sum(shape.nbytes for shape in shapes)
                else:
                    arrays = sum(4 * it.f * (it.size - smaller).volume for it in shapes)
                least = max(least, arrays)
        return least * self.value_bytes // FLOAT_BYTES + partition.least_kept

    def may_fit(self, partition: Partition, allowed: float) -> bool:
        """Return whether each convolution before the first pooling has a primitive that fits.

        These take one item in any segments. They compute it whole, or what one fragment of the
        pooling needs. So few prices decide. Convolutions that may be one step with other layers do
        not count. The answer is yes for layers that take a batch or may use a GPU.

        Args:
            partition: the layers.
            allowed: the bytes that they may take.
        """
        if partition.storage or partition.uses_gpu or partition.input_shape.n > 1:
            return True
        single, parts = list[Node](), [ZERO]
        for node in partition.nodes if partition.shapes else ():
            if isinstance(node.layer, Pool) and node.layer.window.volume > 1:
                less = node.layer.window - 1
                swept = partition.swept
                parts.append(resized(less, swept.axis, 0) if swept else less)
                break
            single.append(node)
        for node in single:
            if isinstance(node.layer, Conv) and node.name not in self._fused:
                taken, out = _shapes_of(partition, node)
                steps = (
                    bare_step(
                        node.layer,
                        Shape5.of(1, taken.f, taken.size - less),
                        Shape5.of(1, out.f, out.size - less),
                    )
                    for less in parts
                )
                if all(self.options.fastest(step, allowed, inf) == inf for step in steps):
                    return False
        return True

    def seconds(self, partition: Partition, allowed: float, limit: float) -> dict[str, float]:
        """Return seconds of each layer that no candidate is below.

        Every segmentation computes the same outputs, if not more. So the fastest price for all
        items of a layer at once is a bound for all of them. If their arrays do not fit, it is the
        price of the largest piece that fits, times the number of pieces. Convolutions that may be
        one step with other layers are left out, as are packed ones. Nothing is priced if the
        limit is too far away (``MOST_GAIN``, or ``MOST_GAIN_OF_SWEEPS``).

        Args:
            partition: the layers.
            allowed: the bytes that they may take.
            limit: the seconds of all layers from which on the bounds need not be any tighter.
        """
        least = {node.name: partition.least.get(node.name, 0.0) for node in partition.nodes}
        if not partition.shapes or self.is_packed:
            return least
        alone = (it for it in partition.nodes if it.name not in self._fused)
        convolutions = [it for it in alone if isinstance(it.layer, Conv)]
        share = MOST_GAIN_OF_SWEEPS if partition.swept else MOST_GAIN
        gain = share * sum(least[node.name] for node in convolutions)
        if gain <= limit - sum(least.values()) < inf:
            return least
        for node in sorted(convolutions, key=lambda node: -least[node.name]):
            left = limit - sum(least.values())
            if not left > 0:
                break
            shape, out = _shapes_of(partition, node)
            each = (shape.nbytes + out.nbytes) // shape.n
            divisors = [n for n in range(shape.n, 0, -1) if shape.n % n == 0]
            items = next((n for n in divisors if n * each <= allowed), 0)
            # A price for some items bounds the time of fewer only if these divide them.
            if items and all(items % n == 0 for n in divisors if n < items):
                times = shape.n // items * partition.least_runs.get(node.name, 1.0)
                cutoff = (least[node.name] + ROUNDED * left) / times
                layer = node.layer.local if partition.storage else node.layer
                some, made = shape._replace(n=items), out._replace(n=items)
                bound = times * self.options.least_seconds(layer, some, made, cutoff)
                least[node.name] = max(least[node.name], bound)
        return least


def _shapes_of(partition: Partition, node: Node) -> tuple[Shape5, Shape5]:
    """Return the shapes of a convolution's input and output, of all items together."""
    if partition.storage:
        taken = partition.storage.shape_taken(node.name, node.inputs)
        return taken, partition.storage.computed_shape(node.name)
    taken, out = partition.shapes[node.inputs[0]], partition.shapes[node.name]
    if swept := partition.swept:
        planes = extent(out, swept.axis) + planes_kept(node.layer, swept.axis)
        taken = resized(taken, swept.axis, planes)
    return taken, out
