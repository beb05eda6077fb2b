"""The choices that users make by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

Border: TypeAlias = Literal["valid", "same"]
Pad: TypeAlias = Literal["reflect", "edge", "constant"]
OutputType: TypeAlias = Literal["float32", "float16", "uint8"]
