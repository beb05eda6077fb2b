"""Measured times of a run's work outside its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import DTypeLike

from znni.core.option_types import Codec, Form, OutputType
from znni.core.text import aligned

Name = TypeVar("Name", Form, Codec)

# Traffic of one core, per byte that the system copies from or to a file.
COPIED_TRAFFIC = 2

# How many times as long a core reads and writes if layers keep all cores busy. They share caches,
# memory and perhaps one physical core. Blocks of 8 bits took 1.7 to 2.5 ns a value to read beside
# layers, and 2.0 to 2.4 ns to write.
BESIDE_LAYERS = 1.4

# Types of stored input, by bytes per value.
READ: dict[int, DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}


# What is measured for each form, in reports.
CHUNKS: dict[Form, str] = {
    "hdf5": "chunk of hdf5",
    "zarr": "chunk of zarr",
    "mapped": "page of a mapped file",
}


class SecondsPerValue(NamedTuple):
    """Seconds to read or write one value of a block.

    Attributes:
        seconds: time from beginning to end, if nothing else works.
        working: processor time beside threads that compute, which is lost for these.
    """

    seconds: float
    working: float


@dataclass(frozen=True)
class ChunkTimes:
    """Processor times to read and write chunks, in addition to those of a block's values.

    They are missing if their library is not installed. Other programs hardly change them, so small
    differences of two of them count.

    Attributes:
        chunk: seconds per chunk of an input that is not compressed, by what reads it; per page if
            it is mapped.
        decoded: seconds per byte of the chunks of an input, by their codec.
        file: seconds per file of an output.
    """

    chunk: Mapping[Form, float]
    decoded: Mapping[Codec, float]
    file: float | None = None


NONE_MEASURED = ChunkTimes({}, {})


@dataclass(frozen=True)
class HandlingTimes:
    """Times of a run's work outside its layers.

    Attributes:
        touched: extra seconds per byte for the first touch of memory, by all threads.
        cold: extra seconds per byte of memory that a virtual machine has never touched since it
            started; None if that was not measured.
        chunks: processor times of chunks and files.
        placed: seconds per value of a fragment that is brought to its place in the output.
        read: seconds per value of a block, by the bytes of a stored value, without those of chunks
            or of mapping.
        written: seconds per value of a block, by the stored type.
    """

    touched: float
    placed: float
    read: Mapping[int, SecondsPerValue]
    written: Mapping[OutputType, SecondsPerValue]
    cold: float | None = None
    chunks: ChunkTimes = NONE_MEASURED

    def rates(self) -> dict[str, float]:
        """Return all times by name, for the cost database."""
        named = {"touched": self.touched, "placed": self.placed}
        named |= {} if self.cold is None else {"cold": self.cold}
        named |= {f"chunk {form}": it for form, it in self.chunks.chunk.items()}
        named |= {f"decoded {codec}": it for codec, it in self.chunks.decoded.items()}
        named |= {} if self.chunks.file is None else {"file": self.chunks.file}
        by_kind = {f"value {size}": it for size, it in self.read.items()}
        by_kind |= {f"written {dtype}": it for dtype, it in self.written.items()}
        for name, taken in by_kind.items():
            named |= {name: taken.seconds, f"{name}, beside layers": taken.working}
        return named

    @classmethod
    def of_rates(cls, named: Mapping[str, float]) -> HandlingTimes:
        """Return the times that ``rates`` named.

        Raises:
            KeyError: a rate is missing, because an older version measured fewer, or measured input
                with its chunks or with mapping (``read 1``, later ``plain 1``, before there was
                ``value 1``), or measured processor time while no other thread computed.
        """

        def taken(name: str) -> SecondsPerValue:
            return SecondsPerValue(named[name], named[f"{name}, beside layers"])

        def some(prefix: str, names: tuple[Name, ...]) -> dict[Name, float]:
            return {it: named[f"{prefix} {it}"] for it in names if f"{prefix} {it}" in named}

        dtypes: tuple[OutputType, ...] = get_args(OutputType)
        return cls(
            named["touched"],
            named["placed"],
            {size: taken(f"value {size}") for size in READ},
            {dtype: taken(f"written {dtype}") for dtype in dtypes},
            named.get("cold"),
            ChunkTimes(
                some("chunk", get_args(Form)), some("decoded", get_args(Codec)), named.get("file")
            ),
        )

    def __str__(self) -> str:
        values = {"output brought together": self.placed}
        values |= {f"{np.dtype(READ[size])} read": it.seconds for size, it in self.read.items()}
        values |= {f"{dtype} written": it.seconds for dtype, it in self.written.items()}
        rows = [(name, f"{1e-6 / each:,.0f}", "million values/s") for name, each in values.items()]
        parts = {CHUNKS[form]: it for form, it in self.chunks.chunk.items()}
        parts |= {} if self.chunks.file is None else {"file of output": self.chunks.file}
        rows += [(name, f"{1e6 * it:,.3g}", "us of a core") for name, it in parts.items()]
        rows += [
            (f"byte of {codec} decoded", f"{1e9 * it:,.1f}", "ns of a core")
            for codec, it in self.chunks.decoded.items()
        ]
        touched = ("memory touched first", f"{1e-6 / self.touched:,.0f}", "MB/s")
        cold = [
            ("memory never touched before", f"{1e-6 / it:,.0f}", "MB/s") for it in [self.cold] if it
        ]
        return "\n".join(aligned([touched, *cold, *rows], left=1))
