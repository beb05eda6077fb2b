"""CUDA C++ that several kernels are made of, and how arrays are passed to kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from znni.machine.cuda_kernels import source_beside
from znni.primitives.gpu.common.number_formats import TensorFormat


def definitions(values: Mapping[str, int]) -> str:
    """Return macros that define names as numbers."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def larger_source() -> str:
    """Return the CUDA function ``float larger(float, float)``, which keeps NaN."""
    return source_beside(__file__, "larger.cuh")


def bfloat16_pair_source() -> str:
    """Return CUDA functions that split float32 numbers into pairs of bfloat16."""
    return source_beside(__file__, "bfloat16_pair.cuh")


def wgmma_source(columns: int, numbers: TensorFormat, *, left_in_registers: bool) -> str:
    """Return CUDA functions for products of warpgroups on Hopper's tensor cores.

    ``wgmma.cuh`` has all but ``multiply_add``, whose number of operands depends on the arguments.

    Args:
        columns: columns of a product. It has 64 rows, and sums over ``numbers.depth``.
        numbers: the format of both sides. Sums are in float32.
        left_in_registers: whether the left side is four registers of each thread, rather than in
            shared memory. The right side always is in shared memory.
    """
    count = columns // 2
    left = [f"a{i}" for i in range(4)] if left_in_registers else ["a"]
    declared, constraint = ("unsigned", "r") if left_in_registers else ("unsigned long long", "l")
    # The instruction says of each 16-bit side in shared memory whether it is transposed.
    transposed = "" if numbers.part == "tf32" else ", 0" if left_in_registers else ", 0, 0"
    *a, b, add = (f"%{count + i}" for i in range(len(left) + 2))
    taken = f"{{{', '.join(a)}}}" if left_in_registers else a[0]
    sums = ", ".join(f"%{i}" for i in range(count))
    types = f"f32.{numbers.part}.{numbers.part}"
    outputs = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    inputs = ", ".join(f'"{constraint}"({name})' for name in left)
    return source_beside(__file__, "wgmma.cuh") + (
        "\n// Adds a product to the warpgroup's sums, or puts it in their place.\n"
        f"__device__ __forceinline__ void multiply_add(float (&sum)[{count}], "
        f"{', '.join(f'{declared} {name}' for name in left)}, "
        "unsigned long long b, bool add) {\n"
        '  asm volatile("{.reg .pred p; setp.ne.b32 p, '
        f"{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k{numbers.depth}.{types} "
        f'{{{sums}}}, {taken}, {b}, p, 1, 1{transposed};}}"\n'
        f'      : {outputs}\n      : {inputs}, "l"(b), "r"((int)add));\n}}\n'
    )


def strides_in_elements(array: Any) -> list[np.int64]:
    """Return the strides of all axes but the last, which is contiguous."""
    return [np.int64(stride // array.itemsize) for stride in array.strides[:-1]]
