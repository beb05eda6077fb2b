"""Set files: YAML files that name several networks for one scan, and the labels of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from znni.cases.networks import NetworkSet, alone, joined
from znni.cases.results_folder import network_of_results
from znni.cases.set_file import is_set
from znni.core.yaml_file import Entry, YamlFile
from znni.importing.nnunet_folder import Results, is_results
from znni.network.network import Network
from znni.network.network_entries import FileName, check_labels
from znni.network.network_file import load_network


class _SetFile(Entry):
    networks: Annotated[list[FileName], Field(min_length=1)]
    labels: Annotated[dict[str, int], BeforeValidator(check_labels)] = Field(default_factory=dict)


def networks_at(path: Path, change: Callable[[Network], Network] = lambda it: it) -> NetworkSet:
    """Return the networks of a set file, a network file or a results folder of nnU-Net.

    Raises:
        InvalidInput: it cannot be read, or its networks do not fit together.
    """
    if not is_set(path):
        return alone(change(_network_at(path)))
    file = YamlFile(path, "set of networks")
    entries = file.checked(_SetFile)
    networks = [change(_network_at(path.parent / name)) for name in entries.networks]
    with file.errors_at("labels" if entries.labels else "networks"):
        return joined(path.stem, networks, tuple(entries.labels.items()))


def _network_at(path: Path) -> Network:
    """Return the network of a file, or of a results folder."""
    return network_of_results(Results(path)) if is_results(path) else load_network(path)
