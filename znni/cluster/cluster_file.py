"""Descriptions of clusters in YAML files: which machines compute, and how to reach them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, ConfigDict, Field

from znni.core.errors import InvalidInput, option
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Bits
from znni.core.processors import has_own_memory
from znni.core.shipped import MACHINES
from znni.core.yaml_file import LARGEST, Count, Entry, Name, YamlFile, is_count
from znni.machine.machine_file import Bandwidth, Memory

Kind: TypeAlias = Literal["local", "slurm", "kubernetes", "address"]

DASK_BYTES = 256 * 2**20  # that Dask takes of a worker's memory, beside znni
WALLTIME_MARGIN = 60.0  # seconds before the end of a walltime in which a worker gets no block
LOCAL_GROUP = "local"
GROUP_NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")

# The kinds of clusters that each key is for; other keys are for all.
KINDS: dict[str, tuple[Kind, ...]] = {
    "address": ("address",),
    "tls": ("address",),
    "interface": ("local", "slurm"),
    "dashboard": ("local", "slurm"),
    "image": ("kubernetes",),
    "namespace": ("kubernetes",),
    "claims": ("kubernetes",),
}
GROUP_KINDS: dict[str, tuple[Kind, ...]] = {
    "walltime": ("slurm",),
    "partition": ("slurm",),
    "account": ("slurm",),
    "directives": ("slurm",),
}


def _walltime(value: object) -> float:
    if isinstance(value, str) and (
        found := re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", value)
    ):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        if walltime := ((days * 24 + hours) * 60 + minutes) * 60 + seconds:
            return float(walltime)
    raise ValueError("give hours, minutes and seconds such as 04:00:00, or days too: 2-00:00:00")


def _gpus(value: object) -> int:
    if not is_count(value) and (value != 0 or isinstance(value, bool)):
        raise ValueError(f"give a number of GPUs from 0 to {LARGEST}; 0: only the CPU computes")
    return int(str(value))


def _price(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise ValueError("give the price of a worker for one hour, as a number such as 3.5")
    return float(value)


def _puts(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError("give the objects or files that can be written in a second, such as 3500")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("give it as text")
    return value


def _file(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_text(value))


def _bits(value: object) -> object:
    if value not in get_args(Bits):
        raise ValueError(
            "give same (all workers compute the same bits) or class (the same accuracy class)"
        )
    return value


def _address(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"(tcp|tls)://\S+:\d+", value):
        raise ValueError("give the address of a Dask scheduler such as tls://10.0.0.1:8786")
    return value


def _claims(value: object) -> object:
    if not isinstance(value, dict) or not all(
        isinstance(claim, str) and isinstance(path, str) and path.startswith("/")
        for claim, path in value.items()
    ):
        raise ValueError("give claims and where they are mounted, such as {data: /data}")
    return value


def _listening(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\S*:\d+", value):
        raise ValueError("give where the dashboard listens, such as 127.0.0.1:8787")
    return value


Text: TypeAlias = Annotated[str, BeforeValidator(_text)]
File: TypeAlias = Annotated[Path, BeforeValidator(_file)]


class _Part(Entry):
    """A part of a cluster file, whose values stay as they are."""

    model_config = ConfigDict(frozen=True)


class Group(_Part):
    """Machines of one kind.

    Attributes:
        name: its name, which no other group has.
        count: number of workers, each of which is a process.
        cores: threads of a worker, or None for all of the machine.
        ram: bytes of memory of a worker's process, all included, or None for the default.
        gpus: GPUs of a worker.
        walltime: seconds after which a worker is ended, or None if it is not.
        machine: the machine file that describes a worker, or None for this machine. The file
            of the cluster may name a machine that comes with znni.
        price_per_hour: price of a worker for an hour, in any currency.
        partition: SLURM's partition.
        account: SLURM's account.
        directives: further options of ``sbatch``.
    """

    name: Name
    count: Count
    cores: Count | None = None
    ram: Memory | None = None
    gpus: Annotated[int, BeforeValidator(_gpus)] = 0
    walltime: Annotated[float, BeforeValidator(_walltime)] | None = None
    machine: File | None = None
    price_per_hour: Annotated[float, BeforeValidator(_price)] | None = None
    partition: Text | None = None
    account: Text | None = None
    directives: tuple[Text, ...] = ()

    @property
    def znni_ram(self) -> int | None:
        """Bytes that znni may take of a worker's memory, which Dask takes a part of."""
        return None if self.ram is None else self.ram - DASK_BYTES


class StorageLimits(_Part):
    """Limits of the storage for all workers together; None where there is none.

    Attributes:
        read: bytes per second of reads.
        write: bytes per second of writes.
        puts: objects or files that can be written in a second.
    """

    read: Bandwidth | None = None
    write: Bandwidth | None = None
    puts: Annotated[float, BeforeValidator(_puts)] | None = None


class Tls(_Part):
    """Files that secure the connection to a scheduler: authority, certificate and key."""

    ca: File
    cert: File
    key: File


class Cluster(_Part):
    """A cluster.

    Attributes:
        kind: how workers are started; ``address``: they run already.
        groups: the machines.
        bits: ``same`` if all workers have to compute the same bits, ``class`` if the accuracy class
            suffices, or None for the default.
        address: where the scheduler listens, if it runs already.
        tls: files for the connection to it, or None for Dask's own configuration.
        interface: the network interface of scheduler and workers, or None for the default.
        dashboard: where the dashboard listens, or None for no dashboard.
        image: the container image of Kubernetes' workers.
        namespace: Kubernetes' namespace.
        claims: Kubernetes' persistent volume claims, with the paths at which they are mounted.
    """

    kind: Kind
    groups: tuple[Group, ...] = ()
    bits: Annotated[Bits, BeforeValidator(_bits)] | None = None
    storage: StorageLimits = StorageLimits()
    address: Annotated[str, BeforeValidator(_address)] | None = None
    tls: Tls | None = None
    interface: Text | None = None
    dashboard: Annotated[str, BeforeValidator(_listening)] | None = None
    image: Text | None = None
    namespace: Text = "default"
    claims: Annotated[Mapping[str, str], BeforeValidator(_claims)] = Field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of workers of all groups."""
        return sum(group.count for group in self.groups)


def load_cluster(given: str | Path) -> Cluster:
    """Return a cluster.

    Args:
        given: path of a cluster file, or ``local:N`` for N workers on this machine.

    Raises:
        InvalidInput: there is no such file, or it is not a cluster's; the error names the line.
    """
    if str(given).startswith("local:"):
        return _local(str(given))
    file = YamlFile(Path(given), "cluster")
    cluster = file.checked(Cluster)
    for location, problem in _problems(cluster):
        raise file.refusal(location, problem)
    folder, tls = file.path.parent, cluster.tls
    found = {
        "groups": tuple(_with_machine(file, *numbered) for numbered in enumerate(cluster.groups)),
        "tls": tls and Tls(ca=folder / tls.ca, cert=folder / tls.cert, key=folder / tls.key),
    }
    return cluster.model_copy(update=found)


def _local(given: str) -> Cluster:
    count = given.removeprefix("local:")
    if not re.fullmatch(r"\d{1,7}", count) or not is_count(int(count)):
        raise InvalidInput(
            f"the cluster is {given!r}; give local: and a number of workers, such as local:4, or "
            f"the path of a cluster file"
        )
    return Cluster(kind="local", groups=(Group(name=LOCAL_GROUP, count=int(count)),))


def per_worker(short: DoesNotFit, sharing: int = 0, leaving: int = 0) -> DoesNotFit:
    """Return the error with the remedy for a worker's memory, which Dask takes a part of.

    Args:
        short: the error about the process that computes.
        sharing: number of workers that share the memory of an option; 0: the file has it.
        leaving: bytes of this option that they leave to another process.
    """
    if has_own_memory(short.device):
        return short
    worker = ceil((short.needed + DASK_BYTES) / 2**20)
    remedy = f"each worker {worker}MiB, by ram: in the cluster file,"
    if sharing:
        needed = worker * sharing + ceil(leaving / 2**20)
        remedy = f"all workers together {option('ram', f'{needed}MiB')}"
    return replace(short, remedy=remedy, sensible=0)


def _with_machine(file: YamlFile, number: int, group: Group) -> Group:
    """Return a group with the path of its machine file, if it has one."""
    if group.machine is None:
        return group
    try:
        found = MACHINES.found(group.machine, file.path.parent)
    except InvalidInput as error:
        raise file.refusal(("groups", number, "machine"), str(error)) from None
    return group.model_copy(update={"machine": found})


Problem: TypeAlias = tuple[tuple[str | int, ...], str]


def _problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield what is wrong with a file whose values are right one by one, and where."""
    yield from _foreign_keys(cluster)
    if cluster.kind == "address":
        if cluster.address is None:
            yield ("kind",), "address: where the scheduler listens is missing; add it"
        elif cluster.tls and not cluster.address.startswith("tls://"):
            yield (
                ("address",),
                f"address is {cluster.address!r}, and tls needs an encrypted one; begin it with "
                f"tls://, or leave out tls",
            )
    elif not cluster.groups:
        yield ("kind",), f"a {cluster.kind} cluster has no groups; add a list of one group or more"
    if cluster.kind == "kubernetes" and cluster.image is None:
        yield ("kind",), "image: the container image of the workers is missing; add it"
    names: set[str] = set()
    for index, group in enumerate(cluster.groups):
        if group.name in names:
            yield (
                ("groups", index, "name"),
                f"another group has the name {group.name!r}; give each group its own",
            )
        names.add(group.name)
        if cluster.kind in ("slurm", "kubernetes") and not GROUP_NAME.fullmatch(group.name):
            yield (
                ("groups", index, "name"),
                f"the group's name is {group.name!r}, and the names of jobs and pods begin with "
                f"it; give a letter, then lower-case letters, digits and -",
            )
        if cluster.kind == "slurm" and (group.cores is None or group.ram is None):
            missing = "ram" if group.cores else "cores"
            yield (
                ("groups", index),
                f"group {group.name} has no {missing}:, for which its jobs ask SLURM; add it",
            )
        if group.ram is not None and group.ram <= DASK_BYTES:
            yield (
                ("groups", index, "ram"),
                f"groups.{index}.ram is {group.ram} bytes, and Dask alone takes {DASK_BYTES}; give "
                f"more, such as 8GiB",
            )


def _foreign_keys(cluster: Cluster) -> Iterator[Problem]:
    """Yield the keys that a file gives and its kind of cluster has no use for."""
    given: list[tuple[Entry, tuple[str | int, ...], dict[str, tuple[Kind, ...]]]]
    given = [(cluster, (), KINDS)]
    given += [(group, ("groups", index), GROUP_KINDS) for index, group in enumerate(cluster.groups)]
    for entry, location, kinds in given:
        for key, known in kinds.items():
            if key in entry.model_fields_set and cluster.kind not in known:
                yield (
                    (*location, key),
                    f"{key} is for clusters of the kind {' or '.join(known)}, and this one is of "
                    f"the kind {cluster.kind}; leave it out",
                )
