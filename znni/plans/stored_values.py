"""Storage of the values at both ends of a run, for its memory and its predicted times."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.option_types import Codec, Compression, Form, OutputType, Packing, check_names
from znni.core.shapes import Vec3


@dataclass(frozen=True)
class InputChunks:
    """The chunks of a stored volume, for predicted times.

    Attributes:
        form: what reads the chunks.
        codec: how they are compressed; None if they are not, or if that is not known.
        chunk: extents of a chunk. Each chunk that a block overlaps is decoded whole. If a file is
            mapped, it is a row of values that follow each other in the file.
        volume: extents of the volume.
    """

    form: Form
    codec: Codec | None
    chunk: Vec3
    volume: Vec3


@dataclass(frozen=True)
class Stored:
    """Storage of the values at both ends of a run.

    Attributes:
        dtype: type of the output values; ``uint8`` stores 0..1 as 0..255.
        input_itemsize: bytes of one stored input value.
        scaled_on_gpu: whether a GPU that computes the first layers also scales the input.
        made_on_gpu: whether a GPU that computes the last layers also makes what is stored: values
            of its type, or labels.
        output_array: bytes of an array for the whole output, if the run makes one; else 0.
        label_maps: maps of labels that are stored instead of the values; 0: values are stored.
        label_itemsize: bytes of a label.
        compression: how stored values are compressed, for predicted times.
        packing: how a file is compressed that is written at the end, from all finished blocks;
            None: blocks are written to their places.
        input_chunks: the chunks of the input; None if it has none, or if they are not known.
        chunk_files: whether each chunk of the output is a file.
        input_chunk_bytes: bytes that reading the input takes for a chunk, of which it needs a part.
        coarser: whether coarser resolutions of the output are made when all blocks are written.
        loads_zarr: whether input or output need zarr-python.

    Raises:
        InvalidInput: the type is not among its choices.
    """

    dtype: OutputType = "float32"
    input_itemsize: int = 4
    scaled_on_gpu: bool = False
    made_on_gpu: bool = True
    output_array: int = 0
    label_maps: int = 0
    label_itemsize: int = 1
    compression: Compression = "none"
    packing: Packing | None = None
    input_chunks: InputChunks | None = None
    chunk_files: bool = False
    input_chunk_bytes: int = 0
    coarser: bool = False
    loads_zarr: bool = False

    def __post_init__(self) -> None:
        check_names(dtype=self.dtype)


AS_COMPUTED = Stored()
