"""Labels of a block's maps, found on a GPU: they are fewer bytes than the maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.engine.labels import Labels, LabelType
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.weights import ConvWeights

THREADS = 256
MOST_BLOCKS = 2**14  # with more voxels, each thread takes several

TYPES: dict[LabelType, str] = {"uint8": "unsigned char", "uint16": "unsigned short"}


class DeviceLabels:
    """Finds the labels of blocks on the current GPU.

    Args:
        features: the maps of the values that it takes.
        head: the weights of the layer that makes the output's maps of these, if there is one.
    """

    def __init__(self, features: int, head: ConvWeights | None) -> None:
        self._features = features
        self._maps = len(head.bias) if head else features
        weights = (head.weight, head.bias) if head else (np.zeros(1, np.float32),) * 2
        self._head = [cupy().asarray(np.ascontiguousarray(each)) for each in weights]
        self._has_head = head is not None
        self._known: dict[Labels, Any] = {}

    def __call__(self, values: Any, labels: Labels) -> Any:
        """Return the labels (1 or f', z, y, x), on the current stream.

        Args:
            values: the values (f, z, y, x), without gaps.
            labels: the rule.
        """
        _, *size = values.shape
        found = cupy().empty((labels.features(self._maps), *size), labels.dtype)
        voxels = found.size // len(found)
        module = compiled(source(), options(labels.dtype, has_head=self._has_head))
        blocks = min(MOST_BLOCKS, -(-voxels // THREADS))
        numbers = values, np.int64(voxels), np.int32(self._features), *self._head
        rule: list[Any] = []
        if labels.regions or not labels.of_maps:
            rule.append(np.float32(labels.threshold))
        if labels.of_maps:
            rule.append(self._labels_of_maps(labels))
        name = "label_largest" if labels.of_maps else "label_above"
        kernel = module.get_function("label_last" if labels.regions else name)
        kernel((blocks,), (THREADS,), (*numbers, np.int32(self._maps), *rule, found))
        return found

    def _labels_of_maps(self, labels: Labels) -> Any:
        """Return the label of each map, on the GPU."""
        if labels not in self._known:
            self._known[labels] = cupy().asarray(np.array(labels.of_maps, labels.dtype))
        return self._known[labels]


def source() -> str:
    """Return the CUDA source of ``label_largest``, ``label_last`` and ``label_above``."""
    return source_beside(__file__, "labels.cu")


def options(dtype: LabelType, *, has_head: bool) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return f"-DLabel={TYPES[dtype]}", f"-DHAS_HEAD={int(has_head)}"
