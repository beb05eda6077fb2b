"""Sums over input maps of kernel times spectrum, fused with the kernels' last transform.

Kernels arrive transformed along y and x only, with a few taps along z. Their values at z and at -z
are sums of the same terms. They are made in registers and used at once, so that no kernel's whole
spectrum ever exists in memory. Spectra are divided into vectors of ``LANES`` frequencies of the
(y, x) plane, real parts before imaginary parts. All operations are lane by lane.
"""

from __future__ import annotations

from znni.network.weights import Float32
from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_code import NUMBER
from znni.primitives.cpu.fft_whole_image.pruned_fft import Complex64

# Bytes of the sums in one pass over the input maps, which stay in the second-level cache. A pass
# over many output maps matters more than the first level, because inputs stream from farther away.
SUMS_BYTES = 256 * 1024

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX


class Accumulator:
    """A kernel for sums of products over the input maps, added in their order.

    Args:
        waves: cosine and sine of each tap at each z, (N_z // 2 + 1, taps, 2).
    """

    def __init__(self, waves: Float32) -> None:
        self._waves = waves
        self._kernel = _accumulator(waves.shape[1])

    def __call__(self, sums: Float32, spectra: Float32, kernels: Float32) -> None:
        """Compute the sums of one block of frequencies.

        Args:
            sums: sums (vectors, out maps, N_z, batch, 2, LANES), overwritten.
            spectra: input spectra (vectors, in maps, N_z, batch, 2, LANES).
            kernels: kernels (out maps, in maps, taps, vectors, 2, LANES).
        """
        vectors, maps, planes, batch = sums.shape[:4]
        pair = 2 * maps * NUMBER * FLOAT_BYTES
        items = min(batch, max(1, SUMS_BYTES // pair))
        pairs = max(1, SUMS_BYTES // (pair * items))
        sums[:] = 0
        addresses = (array.ctypes.data for array in (sums, spectra, kernels, self._waves))
        sizes = (vectors, maps, spectra.shape[1], planes, batch)
        self._kernel(*addresses, *sizes, items, pairs)


@cached_kernel
def _accumulator(taps: int) -> Kernel:
    """Return the loops of ``Accumulator``, for ``items`` of the batch and ``pairs`` of planes.

    Args:
        taps: number of planes of the kernels.
    """
    emit = Emitter(
        f"fused_product_{taps}",
        **dict.fromkeys(("sums", "spectra", "kernels", "waves"), FLOATS),
        **dict.fromkeys(("vectors", "maps", "features", "planes"), INDEX),
        **dict.fromkeys(("batch", "items", "pairs"), INDEX),
    )
    batch, items, pairs = emit["batch"], emit["items"], emit["pairs"]
    # The planes 1 <= z < paired have mirror images. Plane 0 is its own, and paired may be.
    paired = emit.quotient(emit.plus(emit["planes"], 1), 2)
    with emit.loop(emit["vectors"]) as vector, emit.loop(_passes(emit, batch, items)) as item_pass:
        n = emit.times(item_pass, items)
        count = emit.smaller(items, emit.minus(batch, n))
        with emit.loop(emit["features"]) as j, emit.loop(emit["maps"]) as o:
            terms = _Terms(emit, taps, vector, n, j, o)
            terms.add(emit.index(0), count, mirrored=False)
            with emit.when(emit.times(paired, 2), "==", emit["planes"]):
                terms.add(paired, count, mirrored=False)
        with emit.loop(_passes(emit, emit.minus(paired, 1), pairs)) as pair_pass:
            first = emit.plus(emit.times(pair_pass, pairs), 1)
            stop = emit.smaller(emit.plus(first, pairs), paired)
            with emit.loop(emit["features"]) as j, emit.loop(emit["maps"]) as o:
                terms = _Terms(emit, taps, vector, n, j, o)
                with emit.loop(stop, first) as z:
                    terms.add(z, count, mirrored=True)
    return emit.compile()


def _passes(emit: Emitter, extent: Value, step: Value) -> Value:
    """Return the quotient rounded up."""
    return emit.quotient(emit.minus(emit.plus(extent, step), 1), step)


class _Terms:
    """The terms that one input map adds to an output map's sums, at a vector of frequencies."""

    def __init__(
        self, emit: Emitter, taps: int, vector: Value, n: Value, j: Value, o: Value
    ) -> None:
        def index(outer: Value, extent: Value, inner: Value) -> Value:
            return emit.plus(emit.times(outer, extent), inner)

        self._emit = emit
        self._plane = emit.times(emit["batch"], NUMBER)
        map_floats = emit.times(emit["planes"], self._plane)
        target = emit.times(index(vector, emit["maps"], o), map_floats)
        source = emit.times(index(vector, emit["features"], j), map_floats)
        self._sums = emit.at(emit["sums"], index(n, NUMBER, target))
        self._spectra = emit.at(emit["spectra"], index(n, NUMBER, source))
        first_tap = emit.times(index(o, emit["features"], j), taps)
        self._taps = []
        for tap in range(taps):
            number = index(emit.plus(first_tap, tap), emit["vectors"], vector)
            address = emit.at(emit["kernels"], emit.times(number, NUMBER))
            self._taps.append(_load(emit, address))

    def add(self, z: Value, items: Value, *, mirrored: bool) -> None:
        """Add kernel times spectrum at z for so many inputs, and at -z if ``mirrored``."""
        emit = self._emit
        starts = [emit.times(z, self._plane)]
        if mirrored:
            starts.append(emit.times(emit.minus(emit["planes"], z), self._plane))
        kernels = self._kernels(z)
        with emit.loop(items) as item:
            for start, kernel in zip(starts, kernels, strict=False):
                self._multiply_add(emit.plus(start, emit.times(item, NUMBER)), kernel)

    def _kernels(self, z: Value) -> list[tuple[Value, Value]]:
        """Return the kernel's values at z and at -z: sums of (cos +- i sin) times tap."""
        emit, taps = self._emit, len(self._taps)
        row = emit.at(emit["waves"], emit.times(z, 2 * taps))
        by_cosine, by_sine = [emit.constant(0.0)] * 2, [emit.constant(0.0)] * 2
        for tap, parts in enumerate(self._taps):
            cosine = emit.broadcast(emit.at(row, 2 * tap))
            sine = emit.broadcast(emit.at(row, 2 * tap + 1))
            for part, value in enumerate(parts):
                by_cosine[part] = emit.multiply_add(value, cosine, by_cosine[part])
                by_sine[part] = emit.multiply_add(value, sine, by_sine[part])
        (a, b), (c, d) = by_cosine, by_sine
        return [
            (emit.subtract(a, d), emit.add(b, c)),
            (emit.add(a, d), emit.subtract(b, c)),
        ]

    def _multiply_add(self, offset: Value, kernel: tuple[Value, Value]) -> None:
        """Add one vector's complex product to the sums."""
        emit = self._emit
        target = emit.at(self._sums, offset)
        (a, b), (c, d) = _load(emit, emit.at(self._spectra, offset)), kernel
        real, imaginary = _load(emit, target)
        real = emit.multiply_add(emit.negate(b), d, emit.multiply_add(a, c, real))
        imaginary = emit.multiply_add(b, c, emit.multiply_add(a, d, imaginary))
        emit.store(real, target)
        emit.store(imaginary, emit.at(target, LANES))


def _load(emit: Emitter, address: Value) -> tuple[Value, Value]:
    """Load the real and imaginary parts of a vector."""
    return emit.load(address), emit.load(emit.at(address, LANES))


@numba_kernel
def pack(columns: Complex64, count: int, spectra: Float32, first: int, n: int) -> None:
    """Copy ``count`` maps (map, z, frequency) to ``spectra[:, first:, :, n]``, as vectors."""
    for index in range(count):
        for vector in range(spectra.shape[0]):
            for z in range(spectra.shape[2]):
                source = columns[index, z, vector * LANES : (vector + 1) * LANES]
                target = spectra[vector, first + index, z, n]
                for lane in range(LANES):
                    target[0, lane] = source[lane].real
                    target[1, lane] = source[lane].imag


@numba_kernel
def unpack(sums: Float32, first: int, n: int, columns: Complex64, count: int) -> None:
    """Copy ``sums[:, first:, :, n]`` to ``count`` maps of columns: the reverse of ``pack``."""
    for index in range(count):
        for vector in range(sums.shape[0]):
            for z in range(sums.shape[2]):
                source = sums[vector, first + index, z, n]
                target = columns[index, z, vector * LANES : (vector + 1) * LANES]
                for lane in range(LANES):
                    target[lane] = complex(source[0, lane], source[1, lane])
