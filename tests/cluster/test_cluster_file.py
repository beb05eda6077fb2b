"""Cluster files: reading, and errors that give the line, the value and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import MACHINES, ROOT

from znni.cluster.cluster_file import (
    DASK_BYTES,
    Cluster,
    Group,
    StorageLimits,
    Tls,
    load_cluster,
)
from znni.core.errors import InvalidInput
from znni.machine.machine_file import load_machine

GIB = 2**30

SLURM = """\
kind: slurm
groups:
  - name: h200
    count: 16
    cores: 16
    ram: 56GiB
    gpus: 1
    walltime: 04:00:00
    machine: machines/h200.yaml
    price_per_hour: 3.5
    partition: gpu
    account: me
    directives: ["--exclusive"]
  - {name: cpu, count: 100, cores: 8, ram: 8GiB, walltime: 2-00:00:30}
bits: class
storage: {read: 20 GB/s, write: 10 GB/s, puts: 3500}
interface: eth0
dashboard: 127.0.0.1:8787
"""
ADDRESS = """\
kind: address
address: tls://10.0.0.1:8786
tls: {ca: ca.pem, cert: cert.pem, key: key.pem}
"""
KUBERNETES = """\
kind: kubernetes
groups: [{name: a, count: 2}]
image: example.org/znni:0.2.0
"""


def load(text: str, folder: Path) -> Cluster:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return load_cluster(path)


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(text, folder)
    return str(refused.value).removeprefix(str(folder / "cluster.yaml"))


def test_slurm(tmp_path: Path) -> None:
    h200 = Group(
        name="h200",
        count=16,
        cores=16,
        ram=56 * GIB,
        gpus=1,
        walltime="04:00:00",
        machine=tmp_path / "machines/h200.yaml",
        price_per_hour=3.5,
        partition="gpu",
        account="me",
        directives=("--exclusive",),
    )
    cpu = Group(name="cpu", count=100, cores=8, ram=8 * GIB, walltime="2-00:00:30")
    cluster = load(SLURM, tmp_path)
    assert cluster == Cluster(
        kind="slurm",
        groups=(h200, cpu),
        bits="class",
        storage=StorageLimits(read=20e9, write=10e9, puts=3500.0),
        interface="eth0",
        dashboard="127.0.0.1:8787",
    )
    assert cluster.workers == 116
    assert (h200.walltime, cpu.walltime) == (4 * 3600.0, 2 * 86400.0 + 30)
    assert (h200.znni_ram, cpu.znni_ram) == (56 * GIB - DASK_BYTES, 8 * GIB - DASK_BYTES)


def test_other_kinds(tmp_path: Path) -> None:
    tls = Tls(ca=tmp_path / "ca.pem", cert=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    given = "tls://10.0.0.1:8786"
    assert load(ADDRESS, tmp_path) == Cluster(kind="address", address=given, tls=tls)
    groups = (Group(name="a", count=2),)
    image = "example.org/znni:0.2.0"
    assert load(KUBERNETES, tmp_path) == Cluster(kind="kubernetes", groups=groups, image=image)
    spaced = load(f"{KUBERNETES}namespace: lab\n", tmp_path)
    assert spaced == Cluster(kind="kubernetes", groups=groups, image=image, namespace="lab")


@pytest.mark.parametrize("path", sorted((MACHINES / "clusters").iterdir()), ids=lambda p: p.stem)
def test_the_examples_load(path: Path) -> None:
    for group in load_cluster(path).groups:
        assert group.machine
        load_machine(group.machine)


def test_a_known_machine_is_given_by_name(tmp_path: Path) -> None:
    (group, _) = load(SLURM.replace("machines/h200.yaml", "h100"), tmp_path).groups
    assert group.machine == MACHINES / "h100.yaml"
    (tmp_path / "mine").touch()
    (group, _) = load(SLURM.replace("machines/h200.yaml", "mine"), tmp_path).groups
    assert group.machine == tmp_path / "mine"
    said = refusal(SLURM.replace("machines/h200.yaml", "h101"), tmp_path)
    assert said.startswith(
        ", line 9: h101: no such machine file, and no machine of this name comes with"
    )


def test_the_reference_names_all_keys() -> None:
    page = (ROOT / "docs" / "reference" / "cluster-files.md").read_text()
    for entry in (Cluster, Group):
        for name in entry.model_fields:
            assert f"`{name}`" in page


def test_local_workers_need_no_file() -> None:
    assert load_cluster("local:4") == Cluster(kind="local", groups=(Group(name="local", count=4),))
    for given in ("local:", "local:0", "local:four", "local:99999999"):
        with pytest.raises(InvalidInput, match=f"'{given}'; give local: and a number"):
            load_cluster(given)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("kind: slurm", "kind: pbs", ", line 1: unknown kind 'pbs'; choose one of local, slurm, "),
        ("    count: 16\n", "", ", line 3: groups.0 lacks the key 'count'; add it"),
        ("count: 16", "count: 0", ", line 4: groups.0.count is 0; give an integer from 1 to "),
        ("ram: 56GiB", "ram: lots", ", line 6: groups.0.ram is 'lots'; give a size of memory"),
        ("    ram: 56GiB\n", "", ", line 3: group h200 has no ram:, for which its jobs ask SLURM"),
        ("    cores: 16\n", "", ", line 3: group h200 has no cores:, for which its jobs ask"),
        ("ram: 56GiB", "ram: 99MiB", f"ram is {99 * 2**20} bytes, and Dask alone takes 268435456"),
        ("gpus: 1", "gpus: -1", ", line 7: groups.0.gpus is -1; give a number of GPUs from 0 to"),
        ("gpus: 1", "gpus: false", ", line 7: groups.0.gpus is False; give a number of GPUs"),
        ("04:00:00", "4h", ", line 8: groups.0.walltime is '4h'; give hours, minutes and seconds"),
        ("04:00:00", "00:00:00", ", line 8: groups.0.walltime is '00:00:00'; give hours"),
        ("3.5\n", "free\n", ", line 10: groups.0.price_per_hour is 'free'; give the price"),
        ("gpu\n", "3\n", ", line 11: groups.0.partition is 3; give it as text"),
        ('["--exclusive"]', "exclusive", "is 'exclusive'; give a list of one directive or more"),
        ("name: cpu", "name: h200", ", line 14: another group has the name 'h200'; give each"),
        ("bits: class", "bits: few", ", line 15: bits is 'few'; give same (all workers"),
        ("20 GB/s", "fast", ", line 16: storage.read is 'fast'; give a rate such as 250 GB/s"),
        ("puts: 3500", "puts: 0", ", line 16: storage.puts is 0; give the objects or files that"),
        ("dashboard: 127.0.0.1:8787", "dashboard: yes", "give where the dashboard listens, such"),
        ("interface", "interfce", "unknown key 'interfce' in the cluster; did you mean 'interface"),
        ("interface: eth0", "image: x", ", line 17: image is for clusters of the kind kubernetes"),
        (
            "kind: slurm",
            "kind: local",
            "line 8: walltime is for clusters of the kind slurm, and this one is of the kind "
            "local; leave it out",
        ),
    ],
)
def test_errors_name_the_line_the_value_and_the_remedy(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in SLURM
    assert said in refusal(SLURM.replace(old, new), tmp_path)


def test_what_a_kind_lacks(tmp_path: Path) -> None:
    for text, said in (
        ("kind: slurm\n", ", line 1: a slurm cluster has no groups; add a list of one group"),
        ("kind: address\n", ", line 1: address: where the scheduler listens is missing; add it"),
        (ADDRESS.replace("tls://", "tcp://"), ", line 2: address is 'tcp://10.0.0.1:8786', and"),
        (ADDRESS.replace("tls://", ""), ", line 2: address is '10.0.0.1:8786'; give the address"),
        (KUBERNETES.partition("image")[0], ", line 1: image: the container image of the workers"),
        ("- slurm\n", ", line 1: a cluster is a mapping with kind:"),
    ):
        assert said in refusal(text, tmp_path)
    with pytest.raises(InvalidInput, match="no such cluster file; check the path"):
        load_cluster(tmp_path / "none.yaml")
