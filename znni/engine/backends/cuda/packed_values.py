"""Packed values of a block on a GPU: their records, and their sums and norms.

Packed values have records beside the arena, which are zero at the beginning of each block. Some
also have sums of their maps, or a norm that the next step applies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.machine.cuda import cupy
from znni.machine.packed_arrays import GROUP, LeftNorm, PackedArray, groups_for, stored
from znni.network.network import Network
from znni.plans.block_storage import BlockStorage, places_in_join
from znni.plans.program import Program, View


class PackedValues:
    """The records of all packed values of a block, and the sums and norms that steps make."""

    def __init__(self, program: Program, network: Network) -> None:
        self._parts = {name: array.parts for name, array in program.arrays.items() if array.parts}
        self._first: dict[str, int] = {}
        self._beside: dict[str, tuple[Any, LeftNorm | None]] = {}
        count = self._number(network, program.storage) if program.storage else 0
        self._records = cupy().zeros((count, 2), np.uint32) if self._parts else None

    def _number(self, network: Network, storage: BlockStorage) -> int:
        """Give each packed value its records, and return the number of records.

        A value that a later one joins without a step has a part of the later one's records.
        """
        groups = {name: groups_for(maps) for name, maps in storage.maps.items()}
        stepped = {node.name for node in storage.steps_of(network.nodes)}
        count = 0
        for node in reversed(network.nodes):
            if not self.parts(storage.locations[node.name].storage):
                continue
            if node.name not in self._first:
                self._first[node.name] = count
                count += groups[node.name]
            if node.name not in stepped:
                self._first.update(places_in_join(node, groups, self._first[node.name]))
        return count

    def parts(self, array: str) -> int:
        """Return the parts of the numbers in an array; 0: it is not packed."""
        return self._parts.get(array, 0)

    def begin(self) -> None:
        """Queue the clearing of all records, before the first step of a block."""
        self._beside = {}
        if self._records is not None:
            self._records.fill(0)

    def note(self, name: str, made: PackedArray) -> None:
        """Note what a step made beside a value's voxels."""
        self._beside[name] = made.sums, made.norm

    def maps(self, view: View, array: Any) -> PackedArray:
        """Return the maps of a packed value in its array, with all samples."""
        first, groups = view.first_map // GROUP, groups_for(view.maps)
        at = self._first[view.value]
        assert self._records is not None
        records = self._records[at : at + groups]
        voxels = array[:, stored(slice(first, first + groups), self.parts(view.array))]
        return PackedArray(voxels, records, view.maps, *self._beside.get(view.value, ()))
