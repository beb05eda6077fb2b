"""Division of whole numbers, for work that is cut into equal parts."""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """Return all divisors, the largest first."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def even_share(count: int, most: int) -> int:
    """Return the size of as few equal parts as hold at most ``most`` each."""
    return -(-count // -(-count // most))
