"""CUDA C++ of the convolution on tensor cores, and of its image."""

from __future__ import annotations

from znni.cuda import source_beside
from znni.network import Activation
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.tensor_tiles.geometry import Block
from znni.primitives.gpu.tensor_tiles.number_formats import MOST_EXPONENT, NumberFormat


def image_source(numbers: NumberFormat) -> str:
    """Of ``lay_out``."""
    return "\n".join(
        (
            _definitions(PARTS=numbers.parts),
            _ranges(numbers),
            source_beside(__file__, "image.cu"),
        )
    )


def convolution_source(block: Block, activation: Activation) -> str:
    """Of ``convolve``."""
    values = _definitions(
        KERNEL_Z=block.kernel.z,
        KERNEL_Y=block.kernel.y,
        KERNEL_X=block.kernel.x,
        CHUNKS=block.chunks,
        COLUMNS=block.columns,
        PARTS=block.numbers.parts,
        TILES_Z=block.subtile.z,
        TILES_Y=block.subtile.y,
        TILES_X=block.subtile.x,
        TAPS_Z=block.taps.z,
        TAPS_Y=block.taps.y,
        TAPS_X=block.taps.x,
        STAGES=block.stages,
        KEEP_WEIGHTS=int(block.keeps_weights),
    )
    return "\n".join(
        (
            values,
            _ranges(block.numbers),
            activation_source(activation),
            _multiply_add(block.columns),
            source_beside(__file__, "convolution.cu"),
        )
    )


def _ranges(numbers: NumberFormat) -> str:
    values = _definitions(LEAST_EXPONENT=numbers.least_exponent, MOST_EXPONENT=MOST_EXPONENT)
    return values + source_beside(__file__, "ranges.cuh")


def _definitions(**values: int) -> str:
    """Macros of those names."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def _multiply_add(columns: int) -> str:
    """A warpgroup's product of 64 x 16 and 16 x columns, added to a sum or in its place."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    a, b, add = (f"%{count + i}" for i in range(3))
    return (
        f"__device__ __forceinline__ void multiply_add(float (&sum)[{count}], "
        "unsigned long long a, unsigned long long b, bool add) {\n"
        '  asm volatile("{.reg .pred p; setp.ne.b32 p, '
        f"{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 "
        f'{{{sums}}}, {a}, {b}, p, 1, 1, 0, 0;}}"\n'
        f'      : {operands}\n      : "l"(a), "l"(b), "r"((int)add));\n}}\n'
    )
