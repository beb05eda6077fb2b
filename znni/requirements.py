"""What a plan is to meet."""

from __future__ import annotations

from dataclasses import dataclass

from znni.engine.tiles import Job
from znni.network import Network
from znni.options import Choices, Stored


@dataclass(frozen=True)
class Requirements:
    """What a plan is to meet.

    Attributes:
        network: what is computed.
        job: which output is wanted.
        choices: what the plan may use.
        stored: how the values at both ends are stored.
    """

    network: Network
    job: Job
    choices: Choices
    stored: Stored
