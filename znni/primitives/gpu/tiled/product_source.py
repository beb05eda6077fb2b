"""CUDA C++ of the products of spectra on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from znni.primitives.gpu.tiled.cuda_text import cuda_text, definitions
from znni.primitives.gpu.tiled.tile_spectrum import GROUP

# Shared memory that a block may take, and warpgroups that fit the registers.
SHARED_BYTES = 227 * 1024
MOST_WARPGROUPS = 3

# Of a warpgroup's product: tiles, and output maps at most.
ROWS = 64
MOST_OUT_MAPS = 80

WARPGROUP_THREADS = 128


@dataclass(frozen=True)
class ProductShape:
    """How the products at one frequency are cut into blocks.

    Attributes:
        in_maps: input maps, a multiple of GROUP.
        out_maps: output maps of a block, a multiple of GROUP.
        warpgroups: that take turns.
    """

    in_maps: int
    out_maps: int
    warpgroups: int

    @property
    def shared_bytes(self) -> int:
        """The kernels' spectra of one frequency, and 64 tiles' for each warpgroup."""
        return _right_bytes(self.in_maps, self.out_maps) + self.warpgroups * _left_bytes(
            self.in_maps
        )

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warpgroups * WARPGROUP_THREADS

    def source(self) -> str:
        """Of ``multiply_spectra``."""
        values = {
            "IN_MAPS": self.in_maps,
            "OUT_MAPS": self.out_maps,
            "WARPGROUPS": self.warpgroups,
        }
        return "\n".join(
            (
                definitions(values),
                cuda_text("spectrum_layout.cuh"),
                _multiply_add(2 * self.out_maps),
                cuda_text("product.cu"),
            )
        )


def product_shape(in_maps: int, out_maps: int) -> ProductShape | None:
    """The largest share of the output maps that shared memory has room for; None for no room."""
    inner = -(-in_maps // GROUP) * GROUP
    outer = -(-out_maps // GROUP) * GROUP
    passes = -(-outer // MOST_OUT_MAPS)
    while passes * GROUP <= outer:
        share = -(-outer // (GROUP * passes)) * GROUP
        room = SHARED_BYTES - _right_bytes(inner, share)
        warpgroups = min(MOST_WARPGROUPS, room // _left_bytes(inner))
        if warpgroups > 1:
            return ProductShape(inner, share, warpgroups)
        passes += 1
    return None


def _right_bytes(in_maps: int, out_maps: int) -> int:
    """High and low halves of the real matrix 2 in_maps x 2 out_maps."""
    return 2 * (2 * in_maps) * (2 * out_maps) * 2


def _left_bytes(in_maps: int) -> int:
    """High and low halves of 64 rows of 2 in_maps."""
    return 2 * ROWS * (2 * in_maps) * 2


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
        f"{add}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        f'{{{sums}}}, {a}, {b}, p, 1, 1, 0, 0;}}"\n'
        f'      : {operands}\n      : "l"(a), "l"(b), "r"((int)add));\n}}\n'
    )
