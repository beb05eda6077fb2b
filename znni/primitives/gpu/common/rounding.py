"""Numbers of fewer bits than float32's, and what primitives promise whose numbers have them."""

from __future__ import annotations

import numpy as np

from znni.network.weights import Float32

# Of the largest output, of 11 significant bits: tf32 or float16. Errors measured were 2e-4 to 5e-4.
ERROR_OF_11_BITS = 1e-3

# The last bits of float32, which bfloat16 and tf32 have not.
BFLOAT16_LACKS, TF32_LACKS = 16, 13


def rounded(values: Float32, bits: int) -> Float32:
    """Values without the last bits of float32, to the nearest, or away from zero in the middle.

    Args:
        values: finite.
        bits: that are cleared, such as ``TF32_LACKS``.
    """
    raised = values.view(np.uint32) + np.uint32(1 << bits - 1)
    return (raised & ~np.uint32((1 << bits) - 1)).view(np.float32)
