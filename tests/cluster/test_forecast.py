"""Forecasts: blocks, plans of unequal workers, time, cost and what sets the pace."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TypeVar

import pytest
from command_line import refused, succeeds
from fakes import fake_catalogue
from hypothesis import given
from hypothesis import strategies as st

from planner.job_places import box_read
from znni.cluster.blocks import best_block, box_of, patches_in_blocks
from znni.cluster.cluster_file import DASK_BYTES, Cluster, Group, StorageLimits
from znni.cluster.forecast import BLOCKS_A_WORKER, Forecast, forecast
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Border
from znni.core.plan_options import Choices
from znni.core.run_options import RegionOptions
from znni.core.shapes import Box, Vec3
from znni.engine.tiles import make_job
from znni.inference.planning import search
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.plans.primitive import Catalogue

GIB = 2**30
VOLUME = (100, 300, 300)
MACHINE = """\
host: {{name: "{name}", memory: 64GiB, threads: 8, flops: {flops} Gflop/s, bandwidth: 100 GB/s}}
storage: {{read: 100 GB/s, write: 100 GB/s}}
"""

extents = st.builds(Vec3, *3 * [st.integers(1, 3000)])


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Primitives that are as fast as the machine, and cost no time to plan for."""

    def catalogue(machine: Machine) -> Catalogue:
        fakes = fake_catalogue().values()
        return {fake.name: replace(fake, device=machine.host) for fake in fakes}  # type: ignore[type-var]

    monkeypatch.setattr("znni.inference.planning.catalogue", catalogue)


@pytest.fixture
def fast(own_folder: Path) -> Path:
    return machine_file(own_folder, "fast", 0.1)


@pytest.fixture
def slow(own_folder: Path) -> Path:
    return machine_file(own_folder, "slow", 0.002)


Changed = TypeVar("Changed", Group, StorageLimits)


def machine_file(folder: Path, name: str, flops: float) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(MACHINE.format(name=name, flops=flops))
    return path


def group(name: str, machine: Path, count: int = 4) -> Group:
    return Group(name=name, count=count, ram=8 * GIB, machine=machine)


def changed(entry: Changed, **update: object) -> Changed:
    return entry.model_copy(update=update)


def predicted(
    network: Network,
    *groups: Group,
    storage: StorageLimits | None = None,
    border: Border = "valid",
) -> Forecast:
    cluster = Cluster(kind="slurm", groups=groups, storage=storage or StorageLimits())
    return forecast(
        network, VOLUME, cluster, input_dtype="uint8", region=RegionOptions(border=border)
    )


@given(voxels=st.floats(0.1, 1e11), output=extents)
def test_boxes_have_about_the_voxels_asked_for(voxels: float, output: Vec3) -> None:
    box = box_of(voxels, output)
    assert min(box) >= 1
    assert box.within(output)
    wanted = min(voxels, output.volume)
    assert wanted / 4 <= box.volume <= max(4 * wanted, 1)


@given(patch=extents, output=extents, voxels=st.floats(1, 1e11))
def test_blocks_are_whole_patches(patch: Vec3, output: Vec3, voxels: float) -> None:
    patch = patch.minimum(64)
    block = best_block(patch, output, voxels)
    assert block % patch == (0, 0, 0)
    assert block == patch or block.volume <= voxels
    blocks = output.ceil_div(block).volume
    assert patches_in_blocks(output, block, patch) * blocks == pytest.approx(
        output.ceil_div(patch).volume
    )


def test_patches_that_do_not_fit_into_blocks() -> None:
    # 4 + 4 + 2 patches along z, where blocks of 10 take four patches of 3
    assert patches_in_blocks(Vec3(25, 1, 1), Vec3(10, 1, 1), Vec3(3, 1, 1)) == 10 / 3


def test_a_cluster_of_one_kind(network: Network, fast: Path) -> None:
    one = predicted(network, changed(group("a", fast), price_per_hour=2.0))
    (part,) = one.groups
    assert one.blocks >= 4 * BLOCKS_A_WORKER / 2
    assert one.block % part.plan.patch == (0, 0, 0)
    assert part.plan.memory.total <= 8 * GIB - DASK_BYTES
    assert part.plan.machine.host.threads == 8
    assert one.binding == "computing"
    rounds = -(-one.blocks // 4)
    assert one.computing == pytest.approx(rounds * part.seconds, rel=1e-6)
    assert one.seconds == pytest.approx(part.plan.time.once + one.computing, rel=1e-6)
    assert one.cost == pytest.approx(4 * 2.0 * one.seconds / 3600)
    assert one.bytes_written == 4 * network.out_features * one.output.volume
    patches = one.output.ceil_div(part.plan.patch).volume
    assert one.bytes_read == pytest.approx(patches * part.plan.input_patch.volume)
    many = predicted(network, group("a", fast, count=8))
    assert many.computing == pytest.approx(one.computing / 2, rel=0.2)
    assert many.cost is None


def test_voxels_beyond_the_volume_are_not_read(network: Network, fast: Path) -> None:
    one = predicted(network, group("a", fast), border="same")
    (part,) = one.groups
    patch, job = part.plan.patch, make_job(network, Vec3(*VOLUME), "same", None, None)
    reach, within = box_read(network, patch), Box(Vec3(0, 0, 0), job.volume)
    seen = [job.seen(tile, reach).intersection(within) for tile in job.tiles(patch)]
    voxels = [it.size.volume for it in seen if it]
    assert one.bytes_read == pytest.approx(sum(voxels))
    assert one.bytes_read < len(seen) * part.plan.input_patch.volume
    alone = search(network, VOLUME, border="same", machine=fast, input_dtype="uint8")
    same = alone.fastest_for(patch)
    assert same
    assert part.plan.time.patch.reading == pytest.approx(same.time.patch.reading)


def test_unequal_machines_share_blocks_by_speed(network: Network, fast: Path, slow: Path) -> None:
    both = predicted(network, group("fast", fast), group("slow", slow))
    quick, other = both.groups
    assert other.seconds > 10 * quick.seconds
    assert sum(map(both.share, both.groups)) == pytest.approx(both.blocks)
    assert both.share(quick) / both.share(other) == pytest.approx(other.seconds / quick.seconds)
    alone = predicted(network, group("fast", fast))
    assert both.computing < 1.01 * alone.computing


def test_storage_may_set_the_pace(network: Network, fast: Path) -> None:
    free = predicted(network, group("a", fast))
    written, files = free.bytes_written, free.files(sharded=True)
    for name, limits in (
        ("reading", changed(StorageLimits(), read=free.bytes_read / 1e5)),
        ("writing", changed(StorageLimits(), write=written / 1e5)),
        ("PUTs", changed(StorageLimits(), puts=files / 1e5)),
    ):
        bound = predicted(network, group("a", fast), storage=limits)
        assert bound.binding == name
        assert bound.seconds == pytest.approx(bound.start + 1e5 + bound.tail)
        assert f"{name} sets the pace" in str(bound)
    assert free.files(sharded=False) >= files >= 1


@pytest.mark.slow
def test_jobs_that_end_are_started_again(network: Network, fast: Path, slow: Path) -> None:
    whole = predicted(network, group("slow", slow))
    (part,) = whole.groups
    once, block = part.plan.time.once, part.seconds
    walltime = 60 + once + 2.5 * block
    (paused,) = predicted(network, changed(group("slow", slow), walltime=walltime)).groups
    assert paused.pauses == pytest.approx(walltime / (2 * block))
    (never,) = predicted(network, changed(group("slow", slow), walltime=1e9)).groups
    assert never.pauses == 1
    short = changed(group("slow", slow), walltime=60 + once + block / 2)
    with pytest.raises(InvalidInput, match=r"group 'slow' has a walltime of .* give it more"):
        predicted(network, short)
    beside = predicted(network, group("fast", fast), changed(short, walltime=1.0))
    assert beside.groups[1].pauses == inf
    assert beside.share(beside.groups[1]) == 0
    assert "group slow computes nothing" in str(beside)


def test_local_workers_share_this_machine(network: Network) -> None:
    two, four = (
        forecast(network, (20, 40, 40), f"local:{count}").groups[0].plan.machine.host
        for count in (2, 4)
    )
    assert two.memory + DASK_BYTES == pytest.approx(2 * (four.memory + DASK_BYTES), rel=0.2)
    assert two.threads >= four.threads


def test_limits_of_the_user_are_those_of_workers_that_have_none(
    network: Network, fast: Path
) -> None:
    silent, own = (Group(name=name, count=2, machine=fast) for name in ("silent", "own"))
    own = changed(own, ram=8 * GIB, cores=3)
    cluster = Cluster(kind="address", address="tcp://a:1", groups=(silent, own))
    found = forecast(network, VOLUME, cluster, choices=Choices(ram="2GiB", threads=2))
    first, second = (part.plan.machine.host for part in found.groups)
    assert (first.memory, first.threads) == (2 * GIB, 2)
    assert (second.memory, second.threads) == (8 * GIB - DASK_BYTES, 3)


def test_what_cannot_be_predicted(network: Network, fast: Path) -> None:
    with pytest.raises(InvalidInput, match="the cluster has no groups"):
        forecast(network, VOLUME, Cluster(kind="address", address="tcp://a:1"))
    with pytest.raises(DoesNotFit):
        predicted(network, changed(group("a", fast), ram=DASK_BYTES + 1))
    with pytest.raises(InvalidInput, match="there is no GPU"):
        predicted(network, changed(group("a", fast), gpus=2))


@pytest.mark.usefixtures("small_case")
def test_on_the_command_line(fast: Path) -> None:
    groups = f"groups: [{{name: quick, count: 2, machine: {fast.name}, price_per_hour: 1}}]"
    Path("cluster.yaml").write_text(f"kind: local\n{groups}\nstorage: {{puts: 10}}\n")
    plan = ("plan", "--net", "tiny.yaml", "--volume", "300,400,400", "--cluster", "cluster.yaml")
    shown = succeeds(*plan, "--dtype", "uint8")
    for part in ("quick", "blocks  ", "shards of", "/s of 10/s", "sets the pace", "cost  "):
        assert part in shown
    for option in (
        ("--machine", fast),
        ("--explain",),
        ("--json",),
        ("--ram", "1GiB"),
        ("--gpus", "2"),
        ("--threads", "1"),
        ("--out", "plan.json"),
    ):
        said = refused(*plan, *option)
        assert option[0] in said
        assert "describe the machines in the cluster file" in said
    assert "pbs" in refused(*plan[:-1], Path("pbs.yaml"))
