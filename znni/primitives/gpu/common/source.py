"""CUDA C++ that several convolutions are made of."""

from __future__ import annotations

from collections.abc import Mapping


def definitions(values: Mapping[str, int]) -> str:
    """Macros of those names."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def multiply_add_source(
    columns: int, number: str, left: tuple[str, ...], transposed: str | None
) -> str:
    """CUDA C++ of ``multiply_add``: a warpgroup's product, added to a sum or in its place.

    Args:
        columns: of the right side, 16 x columns; the left one is 64 x 16. Of tf32 8, and 64 x 8.
        number: type of their numbers, ``f16``, ``bf16`` or ``tf32``; sums are in float32.
        left: parameters of the left side: its descriptor, or registers.
        transposed: which sides are, of those that are in shared memory; None of tf32, which are
            not.
    """
    depth = 8 if number == "tf32" else 16
    flags = "" if transposed is None else f", {transposed}"
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    *a, b, add = (f"%{count + i}" for i in range(len(left) + 2))
    constraint = "r" if len(left) > 1 else "l"
    names = ", ".join(f'"{constraint}"({declared.split()[-1]})' for declared in left)
    taken = f"{{{', '.join(a)}}}" if len(left) > 1 else a[0]
    return (
        f"__device__ __forceinline__ void multiply_add(float (&sum)[{count}], "
        f"{', '.join(left)}, unsigned long long b, bool add) {{\n"
        '  asm volatile("{.reg .pred p; setp.ne.b32 p, '
        f"{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.f32.{number}.{number} "
        f'{{{sums}}}, {taken}, {b}, p, 1, 1{flags};}}"\n'
        f'      : {operands}\n      : {names}, "l"(b), "r"((int)add));\n}}\n'
    )
