"""Straight-line programs as CUDA C++."""

from __future__ import annotations

from znni.primitives.common.codelets import Codelet


class _Statements:
    """The arithmetic of a codelet, written down; values are names of variables."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def constant(self, value: float) -> str:
        """A number."""
        return f"{value!r}f"

    def add(self, left: str, right: str) -> str:
        """The sum."""
        return self._named(f"{left} + {right}")

    def subtract(self, left: str, right: str) -> str:
        """The difference."""
        return self._named(f"{left} - {right}")

    def scale(self, value: str, factor: float) -> str:
        """The product with a number."""
        return self._named(f"{value} * {self.constant(factor)}")

    def negate(self, value: str) -> str:
        """The negative."""
        return f"-{value}"

    def read(self, number: int) -> str:
        """An input."""
        return self._named(f"in[{number}]")

    def write(self, number: int, value: str) -> None:
        """An output."""
        self.lines.append(f"out[{number}] = {value};")

    def _named(self, expression: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"const float {name} = {expression};")
        return name


def device_function(name: str, codelet: Codelet) -> str:
    """An inlined function ``name(in, out)`` of arrays of floats, which may be the same array."""
    statements = _Statements()
    codelet.evaluate(statements, statements.read, statements.write)
    body = "\n".join(f"  {line}" for line in statements.lines)
    return f"__device__ __forceinline__ void {name}(const float* in, float* out) {{\n{body}\n}}\n"
