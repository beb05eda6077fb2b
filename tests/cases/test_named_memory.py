"""The memory that an error of a case names suffices: with it, all steps of the case fit."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from case_scans import NET, scan, weights_file, write
from hypothesis import given, settings
from hypothesis import strategies as st

from znni.cases.case_folder import Case
from znni.cases.folder import predict_cases
from znni.cases.forecast import forecast
from znni.cases.memory import room_of_files
from znni.cases.networks import alone, joined
from znni.cases.on_cluster import cluster_for
from znni.cases.previous_stage import PreviousNetwork
from znni.components.rules import KeepLargest
from znni.core.memory_errors import DoesNotFit, StepDoesNotFit
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import load_network, network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window

MIB = 2**20
PLANE = 8000  # voxels of an edge: other steps need more than the workers of a cluster
SCALING = "[{mean: 20, std: 50, clip: [-100, 150]}]"


def limits(ram: int) -> Choices:
    return Choices(device="cpu", threads=4, costs="built-in", ram=f"{ram}MiB")


def named_by(error: BaseException) -> int:
    """Return the MiB of memory that an error names."""
    assert isinstance(error, DoesNotFit | StepDoesNotFit)
    named = ceil(error.needed / MIB)
    assert f"--ram {named}MiB" in str(error)
    return named


def network(number: int, normalize: str, features: int, crop: str = "nonzero") -> Network:
    text = NET.replace("crop: nonzero", f"crop: {crop}").replace("organ:", f"organ-{number}:")
    text = (
        text.replace("vessel:", f"vessel-{number}:")
        .replace(SCALING, normalize)
        .replace("features: 4", f"features: {features}")
    )
    return network_from_text(text, "net.yaml")


def scan_of_planes(file: Path, edge: int) -> Path:
    """Write a scan of which only the header is there."""
    write(file, scan())
    with file.open("r+b") as opened:
        opened.seek(42)
        for extent in (edge, edge, 4):
            opened.write(extent.to_bytes(2, "little"))
        opened.truncate(352 + 2 * 4 * edge**2)
    return file


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    count=st.integers(1, 3),
    edge=st.integers(100, PLANE),
    beyond=st.floats(0.0, 0.99),
    largest=st.booleans(),
)
def test_all_steps_of_a_set(
    tmp_path_factory: pytest.TempPathFactory, count: int, edge: int, beyond: float, *, largest: bool
) -> None:
    """The weights of other networks count too. The largest step decides, not the first."""
    file = scan_of_planes(tmp_path_factory.mktemp("case") / "scan.nii", edge)
    case, rules = Case((file,), file.with_name("labels.nii")), [KeepLargest((1,))] * largest
    kinds = (SCALING, 4), ("zscore, within: nonzero", 500), ("zscore", 900)
    networks = joined("set", [network(number, *kind) for number, kind in enumerate(kinds[:count])])
    weights = 4 * sum(each.held_parameters for each in networks.networks)
    ram = 513 + ceil(weights / MIB) + int(100 * beyond)  # the process is there, and few bytes more
    with pytest.raises(StepDoesNotFit) as error:
        room_of_files(case, networks, limits(ram), rules, here=False)
    assert error.value.allowed == ram * MIB
    room_of_files(case, networks, limits(named_by(error.value)), rules, here=False)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    windows=st.lists(st.sampled_from([8, 64, 112, 160]), min_size=1, max_size=3),
    features=st.sampled_from([4, 300]),
    is_cascade=st.booleans(),
    crop=st.sampled_from(["nonzero", "none"]),
    ram=st.integers(300, 700),
)
def test_networks_and_steps_and_stages(
    tmp_path_factory: pytest.TempPathFactory,
    windows: list[int],
    features: int,
    crop: str,
    ram: int,
    *,
    is_cascade: bool,
) -> None:
    """The plans of networks and earlier stages, and all steps, fit in what a run or a plan names.

    The second attempt has exactly the memory that the first one's error names.
    """
    file = write(tmp_path_factory.mktemp("case") / "scan.nii", scan())
    case = Case((file,), file.with_name("labels.nii"))
    networks = [in_windows(number, edge, features, crop) for number, edge in enumerate(windows)]
    asked = joined("set", networks)
    if is_cascade:
        first, asked = networks[0], alone(second_stage(networks[-1]))
        case = replace(case, previous=PreviousNetwork(first, random_weights(first, 0)))

    def plan(ram: int) -> None:
        forecast(case, asked, Options(limits=limits(ram)))

    def run(ram: int) -> None:
        room_of_files(case, asked, limits(ram))

    for work in (plan, run):
        try:
            work(ram)
        except (DoesNotFit, StepDoesNotFit) as error:
            work(named_by(error))


def in_windows(number: int, edge: int, features: int, crop: str) -> Network:
    """Return a network with windows of a cube."""
    net = network(number, SCALING, features, crop)
    return with_window(net, Window(Vec3(edge, edge, edge), like="nnunet"))


def second_stage(net: Network) -> Network:
    """Return a network that takes the labels of another one, too."""
    text = NET.replace("in_features: 1", "in_features: 3").replace(
        SCALING, f"{SCALING[:-1]}, {{mean: 0, std: 1}}, {{mean: 0, std: 1}}]"
    )
    stage = "{channels: [CT], previous_stage: {name: low, labels: [1, 2]}}"
    second = network_from_text(text.replace("{channels: [CT]}", stage), "second.yaml")
    assert net.window
    return with_window(second, net.window)


@pytest.mark.slow
def test_workers_that_wait_and_labels_that_are_written(tmp_path: Path) -> None:
    net = network_in(tmp_path)
    file = scan_of_planes(tmp_path / "scan.nii", PLANE)
    case = Case((file,), tmp_path / "labels.nii")
    report = predict_cases([case], net, Options(limits=limits(1400)), cluster="local:1")
    named = named_by(report.failures[0].error)
    given = Options(limits=limits(named))
    here, _ = cluster_for("local:1", given, case.out, alone(net), writing=1)
    room_of_files(case, alone(net), here.limits, here=False)


@pytest.mark.slow
def test_a_folder_of_cases(tmp_path: Path) -> None:
    net = network_in(tmp_path)
    case = Case((write(tmp_path / "scan.nii", scan()),), tmp_path / "labels.nii")
    short = predict_cases([case], net, Options(limits=limits(700)))
    named = named_by(short.failures[0].error)
    assert not predict_cases([case], net, Options(limits=limits(named))).failures


def network_in(folder: Path) -> Network:
    """Return a network whose file names its weights, in a folder."""
    text = NET.replace("name: organs", "name: organs\nweights: w.npz")
    (folder / "net.yaml").write_text(text.replace(SCALING, "zscore, within: nonzero"))
    net = load_network(folder / "net.yaml")
    weights_file(folder / "w.npz", net)
    return net
