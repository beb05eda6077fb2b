"""Machine files: reading, and errors that give the line, the value and a remedy."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import refused
from hypothesis import given
from hypothesis import strategies as st
from paths import MACHINES

import znni
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.shipped import MACHINES as SHIPPED
from znni.machine.detect import AVAILABLE_SHARE
from znni.machine.machine import NOMINAL_STORAGE, Device, Machine, Storage
from znni.machine.machine_choice import machine_for
from znni.machine.machine_file import load_machine
from znni.machine.processor import PAIRS_PER_CYCLE
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.job_seconds import StageSeconds
from znni.plans.plan_text import plan_table

MACHINES = sorted(MACHINES.glob("*.yaml"))
GIB = 2**30

WHOLE = """\
host:
  name: 2 x Processor
  memory: 10GiB
  threads: 6
  flops: 1.5 Tflop/s
  bandwidth: 80e9
  bfloat16: true
gpus:
  - &card {name: Card, memory: 1000000, flops: 5000 Gflop/s, bandwidth: 336.5GB/s}
  - *card
storage: {read: 700 MB/s}
"""


def load(text: str, folder: Path) -> Machine:
    path = folder / "machine.yaml"
    path.write_text(text)
    return load_machine(path)


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(text, folder)
    return str(refused.value).removeprefix(str(folder / "machine.yaml"))


def test_everything_there_is(tmp_path: Path) -> None:
    usable = int(10 * GIB * AVAILABLE_SHARE)
    card = Device("gpu", "Card", 900_000, 1, flops=5e12, bandwidth=336.5e9, cudnn=True)
    assert load(WHOLE, tmp_path) == Machine(
        Device("cpu", "2 x Processor", usable, 6, flops=1.5e12, bandwidth=80e9, bfloat16=True),
        (card, card),
        absent=True,
        storage=Storage(read=7e8, write=NOMINAL_STORAGE),
    )


def test_what_may_be_left_out(tmp_path: Path) -> None:
    host_alone = WHOLE.partition("  bfloat16")[0]
    machine = load(host_alone, tmp_path)
    assert not machine.host.bfloat16
    assert machine.host.pairs_per_cycle == PAIRS_PER_CYCLE
    assert load(f"{host_alone}  pairs_per_cycle: 0.5\n", tmp_path).host.pairs_per_cycle == 0.5
    assert machine.gpus == ()
    assert machine.storage == Storage()


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_the_machines_here_load(path: Path) -> None:
    machine = load_machine(path)
    for device in (machine.host, *machine.gpus):
        assert 8 * GIB < device.memory < 4096 * GIB
        assert 1e11 < device.flops < 2e14
        assert 1e10 < device.bandwidth < 1e13
        flops_per_byte = device.flops / device.bandwidth
        assert 5 < flops_per_byte < 150  # GPUs for graphics have slow memory for their arithmetic


def test_the_link_of_a_gpu_follows_from_its_capability_if_it_is_not_given(tmp_path: Path) -> None:
    for more, link in (
        ("", 12e9),
        (", capability: 8.6", 24e9),
        (", capability: 9.0", 55e9),
        (", capability: 9.0, link: 20 GB/s", 20e9),
    ):
        read = load(WHOLE.replace("336.5GB/s", f"336.5GB/s{more}"), tmp_path)
        assert [gpu.link for gpu in read.gpus] == [link, link]


def test_slow_storage_sets_the_pace(tmp_path: Path) -> None:
    window = Vec3(5, 5, 5)
    layers = Conv("conv1", 1, 24, window, "relu"), Conv("conv2", 24, 1, window, "relu")
    network = Network.chain("two", 1, layers)
    plans = [
        znni.plan(network, (300, 300, 300), machine=load(text, tmp_path), ram="2GiB")
        for text in (WHOLE, WHOLE.replace("700 MB/s", "1.5 MB/s"))
    ]
    quick, slow = (plan.time.patch for plan in plans)
    assert quick.bottleneck in ("host_layers", "gpu_layers")
    assert slow.bottleneck == "reading"
    assert plans[1].seconds > 4 * 300**3 / 1.5e6
    assert "reading sets the pace" not in plan_table(plans[0])
    assert "reading sets the pace" in plan_table(plans[1])
    assert "assumed" not in plan_table(plans[1])


def test_a_plan_says_that_the_rate_of_storage_is_assumed(tmp_path: Path) -> None:
    network = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(1, 1, 1), "relu"),))
    machine = load(WHOLE, tmp_path)
    plan = znni.plan(network, (30, 30, 30), machine=machine, device="cpu")
    slow, fast = StageSeconds(host_layers=1, writing=2), StageSeconds(host_layers=3, writing=2)
    plan = replace(plan, time=replace(plan.time, patch=slow))
    said = "writing at 2 GB/s, assumed unless the machine file gives storage:"
    assert plan_table(plan).splitlines()[-1].strip() == said
    for other in (
        replace(plan, time=replace(plan.time, patch=fast)),
        replace(plan, machine=replace(machine, storage=Storage(write=1e9))),
        replace(plan, machine=replace(machine, absent=False)),
    ):
        assert "assumed" not in plan_table(other)


def test_the_papers_machines_have_the_same_processors() -> None:
    with_gpu, alone = (
        next(load_machine(path) for path in MACHINES if path.stem == name)
        for name in ("titanx-e7", "e7")
    )
    assert with_gpu.host == alone.host
    assert [gpu.name for gpu in with_gpu.gpus] == ["GeForce GTX Titan X"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("10GiB", "lots", 3, "host.memory is 'lots'; give a size of memory such as 16GiB"),
        ("10GiB", "0", 3, "host.memory is 0; give a size"),
        ("10GiB", "true", 3, "host.memory is True; give a size"),
        ("10GiB", "1.5", 3, "host.memory is 1.5; give a size"),
        ("10GiB", "[1]", 3, "host.memory is [1]; give a size"),
        ("10GiB", f"{10**400}", 3, "host.memory is 1000"),
        ("6", "6.5", 4, "host.threads is 6.5; give an integer from 1"),
        ("6", "0", 4, "host.threads is 0; give an integer from 1"),
        ("1.5 Tflop/s", "1.5", 5, "host.flops is 1.5; give a rate such as 250 Gflop/s"),
        ("1.5 Tflop/s", "1.5 TB/s", 5, "host.flops is '1.5 TB/s'; give a rate such as"),
        ("1.5 Tflop/s", "-5e12", 5, "host.flops is -5000000000000.0; give a rate"),
        ("1.5 Tflop/s", ".inf", 5, "host.flops is inf; give a rate"),
        ("1.5 Tflop/s", f"{10**400}", 5, "host.flops is 1000"),
        ("1.5 Tflop/s", "1.5 Xflop/s", 5, "host.flops is '1.5 Xflop/s'; give a rate"),
        ("80e9", "80 Gflop/s", 6, "host.bandwidth is '80 Gflop/s'; give a rate such as 250 GB/s"),
        ("80e9", "true", 6, "host.bandwidth is True; give a rate"),
        ("bfloat16: true", "bfloat16: maybe", 7, "host.bfloat16 is 'maybe'; give true or false"),
        ("bfloat16: true", "pairs_per_cycle: 0", 7, "host.pairs_per_cycle is 0; give vectors in a"),
        ("bfloat16: true", "pairs_per_cycle: true", 7, "host.pairs_per_cycle is True; give vect"),
        ("  threads: 6\n", "", 1, "host lacks the key 'threads'; add it"),
        ("threads", "treads", 4, "unknown key 'treads' in host; did you mean 'threads'? The keys"),
        ("gpus:", "gpu:", 8, "unknown key 'gpu' in the machine; did you mean 'gpus'? The keys are"),
        ("name: Card, ", "", 9, "gpus.0 lacks the key 'name'"),
        ("name: Card", "threads: 3", 9, "unknown key 'threads' in gpus.0; the keys are name, mem"),
        ("  - *card", "  - 3", 10, "gpus.1 is 3; give it as keys and values: name, memory, flops,"),
        ("name: 2 x Processor", "name: 2", 2, "host.name is 2; give a name"),
        ("name: Card", "capability: 3.5, name: Card", 9, "gpus.0.capability is 3.5; give 5.0 or m"),
        ("  - *card", "  - *cord", 10, "not valid YAML"),
        ("700 MB/s", "fast", 11, "storage.read is 'fast'; give a rate such as 250 GB/s"),
        ("{read", "{reads", 11, "unknown key 'reads' in storage; did you mean 'read'? The keys"),
    ],
)
def test_a_mistake_is_found_at_its_line(
    old: str, new: str, line: int, said: str, tmp_path: Path
) -> None:
    assert old in WHOLE
    message = refusal(WHOLE.replace(old, new, 1), tmp_path)
    assert message.startswith(f", line {line}: {said}")
    assert len(message) < 200


def test_what_is_no_machine(tmp_path: Path) -> None:
    assert refusal("", tmp_path) == ", line 1: a machine is a mapping with host:"
    assert refusal("host: 3", tmp_path).startswith(
        ", line 1: host is 3; give it as keys and values: name, memory, flops, bandwidth, threads"
    )
    gpus = "gpus: {Card: 1}\n" + WHOLE.partition("gpus")[0]
    assert refusal(gpus, tmp_path).endswith("gpus is {'Card': 1}; give a list of one gpu or more")
    with pytest.raises(InvalidInput, match=r"none\.yaml: no such machine file; check the path"):
        load_machine(tmp_path / "none.yaml")


SPACED = "1 flop/s|9 Pflop/s|5 GB/s|1e400 B/s|{a: 1}|- [|!!binary aGk=|&a [*a]"
SINGLE = "3 -1 0.5 1e999 .nan true ~ '' [] {} [1] 2001-01-01 1_0 0x1F 8GiB *card"
WORDS = st.sampled_from([*SINGLE.split(" "), *SPACED.split("|"), "9" * 5000])


@given(st.lists(WORDS, min_size=5, max_size=5), st.integers(0, 2**5))
def test_any_values_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], kept: int
) -> None:
    usual = ["n", "1GiB", "2", "1 Tflop/s", "20 GB/s"]
    mixed = [u if kept >> i & 1 else v for i, (u, v) in enumerate(zip(usual, values, strict=True))]
    keys = ("name", "memory", "threads", "flops", "bandwidth")
    text = "\n".join(f"  {key}: {value}" for key, value in zip(keys, mixed, strict=True))
    with suppress(InvalidInput):
        load(f"host:\n{text}\n", tmp_path_factory.getbasetemp())


def test_the_machine_to_plan_for_within_limits(tmp_path: Path) -> None:
    machine = load(WHOLE, tmp_path)
    path = tmp_path / "machine.yaml"
    assert machine_for(path, None, None) == machine_for(str(path), None, None) == machine
    half = machine_for(machine, "1GiB", 3)
    assert (half.host.memory, half.host.threads, half.host.flops) == (GIB, 3, 0.75e12)
    assert half.absent
    assert half.gpus == machine.gpus
    here = machine_for(None, GIB, 1)
    assert not here.absent
    assert (here.host.memory, here.host.threads) == (GIB, 1)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"ram": "65GiB"}, r"ram='65GiB' \(--ram 65GiB\) is more than 16 cores with AVX2 has by "),
        (
            {"gpu_memory": "25GiB"},
            r"\(--gpu-memory 25GiB\) .* RTX 4090 has by .*, 24\.00 GiB; give",
        ),
    ],
)
def test_a_limit_is_no_more_than_the_machine_has(limits: dict[str, str], said: str) -> None:
    (path,) = (path for path in MACHINES if path.stem == "rtx4090")
    whole = machine_for(path, "64GiB", None, "24GiB")
    assert (whole.host.memory, whole.gpus[0].memory) == (64 * GIB, 24 * GIB)
    with pytest.raises(InvalidInput, match=said):
        machine_for(path, limits.get("ram"), None, limits.get("gpu_memory"))


def test_the_machines_here_are_found_by_name(own_folder: Path) -> None:
    assert SHIPPED.names == [path.stem for path in MACHINES]
    for path in MACHINES:
        assert load_machine(path.stem) == load_machine(path) == load_machine(path.name)
    assert machine_for("e7", "1GiB", None).host.memory == GIB
    (own_folder / "e7").write_text(WHOLE)
    assert load_machine("e7").host.name == "2 x Processor"  # a file of that name comes first


def test_an_unknown_name_lists_the_known_machines() -> None:
    said = refused("plan", "--net", "n337", "--volume", "256,256,256", "--machine", "rtx4091")
    assert "rtx4091: no such machine file, and no machine of this name comes with znni; " in said
    assert "did you mean rtx4090? There are a100-40, " in said
    assert said.strip().endswith(", ".join(path.stem for path in MACHINES))


def test_the_error_for_a_missing_file_suggests_one_beside_it() -> None:
    missing = MACHINES[0].with_name("rtx4091.yaml")
    with pytest.raises(InvalidInput, match=r"no such machine file; did you mean .*rtx4090\.yaml\?"):
        load_machine(missing)
