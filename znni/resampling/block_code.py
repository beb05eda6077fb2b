"""Vector operations within intrinsics of numba, for loops that compilers do not vectorize."""

from __future__ import annotations

from typing import Any

from znni.primitives.cpu.common.vector_code import VECTOR, VectorCode


class BlockCode(VectorCode):
    """An emitter of vector operations within an intrinsic of numba.

    Args:
        context: numba's context.
        builder: the builder of the function.
        signature: the intrinsic's signature.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self._build, self._module = builder, builder.module
        self._data = {
            number: context.make_array(kind)(context, builder, arguments[number]).data
            for number, kind in enumerate(signature.args)
            if hasattr(kind, "ndim")
        }

    def float_at(self, array: int, *places: Any) -> Any:
        """Return the address of a float.

        Args:
            array: the number of the argument.
            places: numbers whose sum is the index.
        """
        at, *others = places
        for other in others:
            at = self._build.add(at, other)
        return self._build.gep(self._data[array], [at])

    def vector_at(self, array: int, *places: Any) -> Any:
        """Return the address of 16 floats, as ``float_at`` does."""
        return self._build.bitcast(self.float_at(array, *places), VECTOR.as_pointer())
