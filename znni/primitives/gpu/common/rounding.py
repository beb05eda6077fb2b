"""What primitives promise whose numbers are rounded to 11 significant bits: tf32 or float16."""

from __future__ import annotations

# Of the largest output. Errors measured were 2e-4 to 5e-4.
ERROR_OF_11_BITS = 1e-3
