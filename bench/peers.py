"""What others offer, at their best settings. PyTorch comes with the optional extra ``peers``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np

from znni.weights import ConvWeights, Float32


def torch_convolutions(
    weights: ConvWeights, x: Float32, threads: int
) -> dict[str, Callable[[], Float32]]:
    """PyTorch's convolution with bias and ReLU, in both layouts, in float32 and bfloat16.

    Empty where PyTorch is not installed.
    """
    if find_spec("torch") is None:
        return {}
    import torch

    torch.set_num_threads(threads)
    runs: dict[str, Callable[[], Float32]] = {}
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    formats = {"": torch.contiguous_format, "_channels_last": torch.channels_last_3d}
    for (type_name, dtype), (format_name, layout) in product(types.items(), formats.items()):
        image = torch.from_numpy(x).to(dtype).contiguous(memory_format=layout)
        kernel = torch.from_numpy(weights.weight).to(dtype).contiguous(memory_format=layout)
        bias = torch.from_numpy(weights.bias).to(dtype)

        runs[f"torch_{type_name}{format_name}"] = partial(_convolve, image, kernel, bias)
    return runs


def _convolve(image: Any, kernel: Any, bias: Any) -> Float32:
    import torch

    with torch.inference_mode():
        y = torch.relu_(torch.nn.functional.conv3d(image, kernel, bias))
    return np.asarray(y.float().numpy())
