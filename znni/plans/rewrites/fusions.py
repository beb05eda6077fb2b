"""All rules by which layers that follow each other may be one step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from znni.network.network import Network
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.pooled_convolution import POOLED_CONVOLUTION
from znni.plans.rewrites.summed_convolution import SUMMED_CONVOLUTION

RULES = (POOLED_CONVOLUTION, SUMMED_CONVOLUTION)


@lru_cache(maxsize=256)
def fusions(network: Network) -> Mapping[tuple[str, ...], Fusion]:
    """Return the layers of a network that may be one step, by their names."""
    found = (fusion for rule in RULES for fusion in rule.matches(network))
    return MappingProxyType({fusion.layers: fusion for fusion in found})


def overwritten(network: Network) -> Mapping[str, str]:
    """Return the values in whose memory fusions have their outputs, by the names of these."""
    return {it.gives: it.overwrites for it in fusions(network).values() if it.overwrites}
