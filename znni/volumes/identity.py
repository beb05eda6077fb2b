"""The identity of an output: everything that its bytes depend on, except the plan.

``identified`` (``inference/resuming.py``) makes it, and the ledger keeps it. A run with another
identity cannot resume the output. This module says in words what differs.
"""

from __future__ import annotations

from collections.abc import Mapping

# Properties that follow from others: values are sampled where the input is read.
FOLLOWING = {
    "the input's values": {"the region", "the network"},
    "its place in space": {"the region"},
}


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what differs between two identities of an output, in words."""
    differing = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    return [
        then_and_now(name, then.get(name, "none"), now.get(name, "none"))
        for name in differing
        if FOLLOWING.get(name, set()).isdisjoint(differing)
    ]


def then_and_now(name: str, then: str, now: str) -> str:
    """Return what a property was in an earlier run and what it is now, in words.

    The values may have commas, such as ``same, reflect``.
    """
    return f"{name} (then: {then}; now: {now})"
