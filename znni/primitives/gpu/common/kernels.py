"""CUDA C++ that several kernels are made of, and how arrays are passed to kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from znni.machine.cuda_kernels import source_beside
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import TensorFormat


def definitions(values: Mapping[str, int]) -> str:
    """Return macros that define names as numbers."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def compiler_options(values: Mapping[str, int]) -> tuple[str, ...]:
    """Return options of the compiler that define names as numbers."""
    return tuple(f"-D{name}={value}" for name, value in values.items())


def of_axes(name: str, extents: Iterable[int]) -> dict[str, int]:
    """Return the extent of each axis by a macro's name, such as ``TILE_Z``."""
    return {f"{name}_{axis}": extent for axis, extent in zip("ZYX", extents, strict=True)}


def common_code(*files: str) -> str:
    """Return the CUDA C++ in some files of this folder, such as ``larger.cuh``."""
    return "".join(source_beside(__file__, name) for name in files)


def products_source(
    chip: Chip, columns: int, numbers: TensorFormat, *, left_in_registers: bool, widths: int = 1
) -> str:
    """Return CUDA functions for products of four warps on a chip's tensor cores.

    They have the same names on all chips, and leave the sums in the same registers.

    Args:
        chip: the chip, which has products of warpgroups or of single warps.
        columns: columns of a product. It has 64 rows, and sums over ``numbers.depth``.
        numbers: the format of both sides. Sums are in float32.
        left_in_registers: whether the left side is four registers of each thread, rather than in
            shared memory: only warpgroups can read it there. The right side always is in shared
            memory.
        widths: products have ``columns``, twice as many, and so on: so many kinds of them. Only
            warpgroups have more than one.
    """
    if chip.has_warpgroups:
        kinds = [
            _wgmma_source(times * columns, numbers, left_in_registers=left_in_registers)
            for times in range(1, widths + 1)
        ]
        return common_code("shared_copies.cuh", "wgmma.cuh") + "".join(kinds)
    if not left_in_registers:
        raise ValueError(f"chips of capability {chip.capability} take the left side in registers")
    return warp_mma_source(numbers) + source_beside(__file__, "warp_products.cuh")


def warp_mma_source(numbers: TensorFormat) -> str:
    """Return CUDA functions for products of single warps, on any chip since Ampere.

    Four warps together make what one instruction of wgmma makes, with the same numbers in the same
    registers.
    """
    types = f"f32.{numbers.part}.{numbers.part}.f32"
    return common_code("shared_copies.cuh", "matrices.cuh") + (
        "\n// Adds a product of 16 rows and 8 columns to a warp's sums, or begins with it.\n"
        "__device__ __forceinline__ void multiply_add(float* sum, const unsigned (&a)[4], "
        "unsigned b0, unsigned b1, bool add) {\n"
        "  if (!add) sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;\n"
        f'  asm("mma.sync.aligned.m16n8k{numbers.depth}.row.col.{types} '
        '{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"\n'
        '      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])\n'
        '      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));\n}\n'
    )


def _wgmma_source(columns: int, numbers: TensorFormat, *, left_in_registers: bool) -> str:
    """Return the CUDA function ``multiply_add`` for products of warpgroups on Hopper.

    Its number of operands depends on the arguments.
    """
    count = columns // 2
    left = [f"a{i}" for i in range(4)] if left_in_registers else ["a"]
    declared, constraint = ("unsigned", "r") if left_in_registers else ("Side", "l")
    # The instruction says of each 16-bit side in shared memory whether it is transposed.
    transposed = "" if numbers.part == "tf32" else ", 0" if left_in_registers else ", 0, 0"
    *a, b, add = (f"%{count + i}" for i in range(len(left) + 2))
    taken = f"{{{', '.join(a)}}}" if left_in_registers else a[0]
    sums = ", ".join(f"%{i}" for i in range(count))
    types = f"f32.{numbers.part}.{numbers.part}"
    outputs = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    inputs = ", ".join(f'"{constraint}"({name})' for name in left)
    return (
        "\n// Adds a product to the warpgroup's sums, or puts it in their place.\n"
        f"__device__ __forceinline__ void multiply_add(float (&sum)[{count}], "
        f"{', '.join(f'{declared} {name}' for name in left)}, "
        "Side b, bool add) {\n"
        '  asm volatile("{.reg .pred p; setp.ne.b32 p, '
        f"{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k{numbers.depth}.{types} "
        f'{{{sums}}}, {taken}, {b}, p, 1, 1{transposed};}}"\n'
        f'      : {outputs}\n      : {inputs}, "l"(b), "r"((int)add));\n}}\n'
    )


def strides_in_elements(array: Any) -> list[np.int64]:
    """Return the strides of all axes but the last, which is contiguous."""
    return [np.int64(stride // array.itemsize) for stride in array.strides[:-1]]
