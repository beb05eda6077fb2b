"""The networks that label a scan together. A single network is a set of one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from znni.cases.preparation import rules_of, stored_values, unit_of
from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.core.mapped_file import FORGET
from znni.core.memory_errors import DoesNotFit, StepDoesNotFit
from znni.core.plan_options import Choices
from znni.core.shapes import FLOAT_BYTES
from znni.core.text import counted, in_units
from znni.core.version import __version__
from znni.engine.labels import label_names, labels_for
from znni.inference.plan_choice import machine_here
from znni.network.case_rules import CaseRules
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.weights import Weights, weights_for
from znni.network.weights_file import is_mapped

# The labels of a network, each with the label of the set that takes its place.
Numbers: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class NetworkSet:
    """Networks whose labels of one scan are joined. Where two have a label, the later one counts.

    Attributes:
        name: the name, for the names of outputs.
        networks: the networks, whose files describe whole cases.
        numbers: the labels of each network in the set. Empty: they stay as they are.
    """

    name: str
    networks: tuple[Network, ...]
    numbers: tuple[Numbers, ...] = ()

    @property
    def rules(self) -> CaseRules:
        """The steps of a case that are the same for all networks: those of the first."""
        first, *_ = map(rules_of, self.networks)
        return first

    @property
    def groups(self) -> list[list[int]]:
        """The numbers of the networks, in groups that take the same input."""
        keys = [(rules_of(it).input_steps, it.scaling.rules, it.spacing) for it in self.networks]
        alike: dict[object, list[int]] = {}
        for number, key in enumerate(keys):
            alike.setdefault(key, []).append(number)
        return list(alike.values())

    def numbers_of(self, number: int) -> Numbers | None:
        """Return the labels of a network in the set; None if they stay as they are."""
        return self.numbers[number] if self.numbers else None

    @property
    def labels(self) -> dict[str, int]:
        """The labels of the set by name."""
        return {
            name: dict(self.numbers_of(number) or ()).get(own, own)
            for number, network in enumerate(self.networks)
            for name, own in label_names(network)
        }

    def attributes(self, weights: Sequence[Weights]) -> dict[str, Any]:
        """Return what a file of labels says about them.

        Args:
            weights: the parameters of each network.
        """
        noted = {"znni_version": __version__, "network": self.name}
        if len(self.networks) > 1 or self.numbers:
            return noted | {"labels": json.dumps(self.labels)}
        network, stored = self.networks[0], stored_values(self.networks[0])
        rule = labels_for(network, stored.labels, stored.threshold)
        assert rule is not None
        noted |= {"network_file": network_text(network), "weights_sha256": weights[0].sha256}
        return noted | rule.attributes(network)

    @property
    def largest(self) -> list[KeepLargest]:
        """The rules by which only the largest components of the networks' labels stay."""
        return [
            KeepLargest(tuple(dict(self.numbers_of(number) or ()).get(own, own) for own in labels))
            for number, network in enumerate(self.networks)
            for labels in rules_of(network).largest
        ]

    def weights(self, given: Path | None = None) -> tuple[Weights, ...]:
        """Return the weights of each network.

        Args:
            given: a file of weights for a single network; None: the files that networks name.
        """
        if given and len(self.networks) > 1:
            raise InvalidInput(
                f"{given} is one file of weights, and {self.name} has "
                f"{counted(len(self.networks), 'network')}; name the weights in their files"
            )
        return tuple(weights_for(it, given, None, mapped=True) for it in self.networks)


def alone(network: Network) -> NetworkSet:
    """Return the set of one network."""
    return NetworkSet(network.name, (network,))


def joined(
    name: str, networks: Sequence[Network], labels: Sequence[tuple[str, int]] = ()
) -> NetworkSet:
    """Return the set of several networks.

    Args:
        name: the name of the set.
        networks: the networks, whose files describe whole cases and name their labels.
        labels: the label of each name in the set. Empty: names are numbered from 1 on, in the
            order of the networks. The background of each network, its label 0, stays 0.

    Raises:
        InvalidInput: the networks need different scans, one cannot be joined, or names of labels
            are missing, unknown or occur twice.
    """
    first = networks[0]
    for other in networks[1:]:
        if _scan_of(first) != _scan_of(other):
            raise InvalidInput(
                f"networks {first.name} and {other.name} differ in channels:, file_ending:, "
                f"orientation: or voxels: of their cases, or in the unit of spacing:; give "
                f"networks that take the same scan"
            )
    if len(networks) == 1 and not labels:
        return NetworkSet(name, tuple(networks))
    for network in networks:
        if stage := rules_of(network).previous_stage:
            raise InvalidInput(
                f"network {network.name} takes the labels of {stage.name} too, which networks that "
                f"are joined cannot; compute it alone"
            )
        if rules_of(network).masks is not None:
            raise InvalidInput(
                f"network {network.name} gives masks, which are not joined; compute them alone"
            )
        if not network.labels:
            raise InvalidInput(
                f"network {network.name} does not name its labels; write them in its file, such as "
                f"labels: {{background: 0, liver: 1}}"
            )
    own = [name for network in networks for name, label in network.labels if label]
    grounds = {name for network in networks for name, label in network.labels if not label}
    chosen = dict(labels) or dict(zip(own, count(1), strict=False))
    _check(own, grounds, chosen)
    numbers = (
        tuple((label, chosen[name] if label else 0) for name, label in network.labels)
        for network in networks
    )
    return NetworkSet(name, tuple(networks), tuple(numbers))


def _scan_of(network: Network) -> tuple[object, ...]:
    """Return all that decides how a network's scans are opened."""
    return *rules_of(network).scan, unit_of(network) or "millimeter"


def _check(own: Sequence[str], grounds: set[str], chosen: dict[str, int]) -> None:
    """Check the names of labels."""
    problems = [f"{name} occurs twice" for name, times in Counter(own).items() if times > 1]
    problems += [f"{name} is missing" for name in own if name not in chosen]
    for name, label in chosen.items():
        if name not in own and label:
            problems.append(f"{name} is the background" if name in grounds else f"no {name}")
        elif name in own and not label:
            problems.append(f"{name} is 0, which is the background")
    if problems:
        raise InvalidInput(
            f"labels of the set: {', '.join(problems)}; give each label of the networks one number "
            f"above 0. They are {', '.join(dict.fromkeys(own))}"
        )


def beside_weights(
    limits: Choices, networks: NetworkSet, earlier: Sequence[Network] = ()
) -> tuple[Choices, int]:
    """Return limits for the plan of each network, and the bytes of the other networks' weights.

    While a network is computed, the weights of the others stay in memory, unless their files are
    mapped. Without a limit, plans take what the machine has left beside them.
    """
    sizes = list(map(bytes_kept, networks.networks))
    others = sum(sizes) - min(sizes) + sum(map(bytes_kept, earlier))
    return leaving(limits, others), others


def leaving(limits: Choices, nbytes: int) -> Choices:
    """Return limits that leave so many bytes of the host to other work, if they have any."""
    if not nbytes or limits.ram is None:
        return limits
    return replace(limits, ram=max(1, machine_here(limits).host.memory - nbytes))


def bytes_kept(network: Network) -> int:
    """Return the bytes of a network's weights while another network is computed."""
    flipped = any(isinstance(it, Conv) and it.mode == "convolution" for it in network.weighted)
    given_back = FORGET is not None and not flipped and is_mapped(network.weights)
    return 0 if given_back else FLOAT_BYTES * network.held_parameters


@contextmanager
def noting_weights(others: int) -> Iterator[None]:
    """Note the weights of the other networks on errors of too little memory."""
    try:
        with counting(others):
            yield
    except DoesNotFit as error:
        if others:
            error.add_note(f"the weights of the other networks take {in_units(others)} of it")
        raise


@contextmanager
def counting(beside: int) -> Iterator[None]:
    """Count other work in errors of too little memory, so that they name enough."""
    try:
        yield
    except (DoesNotFit, StepDoesNotFit) as error:
        if not beside:
            raise
        counted = error.beside(beside)
        counted.__notes__ = getattr(error, "__notes__", [])
        raise counted from error
