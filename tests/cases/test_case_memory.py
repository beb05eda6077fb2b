"""Each step of a case takes no more memory than it declares, and a case that cannot fit says so."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from case_scans import NET, write
from hypothesis import given, settings
from hypothesis import strategies as st

from znni.cases import input_slabs, probabilities, slabs, values
from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.cases.input_file import write_input
from znni.cases.input_slabs import InputSlabs
from znni.cases.joined_labels import Part, joined_labels, without_components
from znni.cases.memory import room_for, room_of_files, search_for
from znni.cases.networks import alone, beside_weights
from znni.cases.preparation import (
    Preparation,
    preparation_for,
    preparation_of_all,
    scaling_bytes,
)
from znni.cases.previous_stage import (
    PreviousNetwork,
    labels_before_bytes,
    network_input,
    open_labels,
    write_labels_before,
)
from znni.cases.probabilities import (
    labels_of_maps_bytes,
    write_labels_of_maps,
    write_probabilities,
)
from znni.cases.scan import open_scan
from znni.cases.slabs import LEAST_COMPONENTS, Slab, slab_within
from znni.cases.values import change_values, changed_bytes
from znni.components.rules import KeepLargest
from znni.components.slabs import MOST_COMPONENTS
from znni.core.memory_errors import StepDoesNotFit
from znni.core.plan_options import Choices
from znni.core.resampling import Resampling
from znni.core.run_options import Options
from znni.core.shapes import Box, Vec3
from znni.engine.run_state import no_progress
from znni.inference.session import Session
from znni.network.case_rules import ScaleRange, Standardize, Stretch, ValueStep
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights

SIZE = (40, 160, 150)
RULES = [KeepLargest(labels=(1,))]
SMALL = 2**20  # bytes of Python's own objects, which are not declared
NONE = Path("none.nii")
LIMITS = Choices(device="cpu", threads=2, costs="built-in")


def network(normalize: str = "zscore, within: nonzero") -> Network:
    text = NET.replace("[{mean: 20, std: 50, clip: [-100, 150]}]", normalize)
    return network_from_text(text, "organs.yaml")


def noise(dtype: str = "float32") -> np.ndarray[Any, np.dtype[Any]]:
    values = np.random.default_rng(0).integers(1, 300, SIZE).astype(dtype)
    values[:, :20] = values[:, :, :9] = 0
    return values


def peak_of(step: Callable[[], object]) -> int:
    """Return the most bytes that arrays of a step take."""
    tracemalloc.start()
    try:
        step()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow_cases
@pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
@pytest.mark.parametrize("normalize", ["zscore, within: nonzero", "zscore", "percentiles"])
@pytest.mark.parametrize("orientation", ["stored", "RAS"])
def test_preparing_takes_what_it_declares(
    tmp_path: Path, dtype: str, normalize: str, orientation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if normalize == "percentiles":
        normalize = "{percentiles: [0, 100]}"
    net = network(normalize)
    assert net.case is not None
    net = replace(net, case=replace(net.case, orientation=orientation))
    affine = np.array([[0, 0, 2.5, 0], [-1.2, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1]])
    file = write(tmp_path / "scan.nii", noise(dtype), affine)
    monkeypatch.setattr(slabs, "SLAB_VOXELS", 2**16)
    monkeypatch.setattr(input_slabs, "SLAB_BYTES", 2**22)
    scan = open_scan([file], net.case, tmp_path)
    known = preparation_of_all(scan, net)
    declared = room_for(Case((file,), NONE), scan, [known], [search_for(known, LIMITS)]).steps
    prepared = preparation_for(scan, net, tmp_path)  # code is loaded and compiled
    write_input(scan, prepared, tmp_path / "input.npy", 2)
    reading = peak_of(lambda: preparation_for(scan, net, tmp_path))
    resampling = peak_of(lambda: write_input(scan, prepared, tmp_path / "again.npy", 2))
    assert reading <= declared.reading + SMALL
    assert resampling <= declared.resampling + SMALL


@pytest.mark.slow_cases
@pytest.mark.parametrize("within", ["all", "nonzero"])
@pytest.mark.parametrize("stored", ["uint8", "float32"])
@pytest.mark.parametrize("slab", [2**29, 2**20])
def test_a_cascade_takes_what_it_declares(
    tmp_path: Path, within: str, stored: str, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels of the previous stage take memory, and so does the mask that a CT needs for them."""
    ct = "{mean: 20, std: 50}" if within == "all" else "zscore"
    rest = "{mean: 0, std: 1}, {mean: 0, std: 1}]"
    text = NET.replace("in_features: 1", "in_features: 3").replace(
        "[{mean: 20, std: 50, clip: [-100, 150]}]", f"[{ct}, {rest}, within: {within}"
    )
    stage = "{channels: [CT], previous_stage: {name: low, labels: [1, 2]}}"
    net = network_from_text(text.replace("{channels: [CT]}", stage), "organs.yaml")
    monkeypatch.setattr(slabs, "SLAB_VOXELS", 2**16)
    monkeypatch.setattr(input_slabs, "SLAB_BYTES", slab)
    file = write(tmp_path / "scan.nii", noise("uint8"))
    values = np.random.default_rng(1).integers(0, 3, SIZE).astype(stored)
    before = write(tmp_path / "low.nii", values)
    assert net.case is not None
    assert net.case.previous_stage is not None
    scan = open_scan([file], net.case, tmp_path)
    known = preparation_of_all(scan, net)
    case = Case((file,), NONE, before)
    declared = room_for(case, scan, [known], [search_for(known, LIMITS)]).steps
    labels = open_labels(before, scan, net.case.previous_stage)

    def read() -> Preparation:
        return preparation_for(scan, net, tmp_path, room=declared.reading, labels=labels)

    def resample() -> None:
        for name in ("input.npy", "input-labels.npy"):
            (tmp_path / name).unlink(missing_ok=True)
        network_input(
            tmp_path / "input.npy", scan, read(), labels, 2, declared.resampling, no_progress
        )

    resample()  # code is compiled
    assert peak_of(read) <= declared.reading + SMALL
    prepared = read()
    monkeypatch.setattr("znni.cases.previous_stage.write_input", lambda *_: None)
    taken = peak_of(
        lambda: write_labels_before(
            scan, prepared, labels, tmp_path / "input-labels.npy", 2, declared.resampling
        )
    )
    assert taken <= declared.resampling + SMALL
    assert (
        taken
        <= labels_before_bytes(scan, known, np.dtype(stored).itemsize, 2, declared.resampling)
        + SMALL
    )


def test_weights_of_earlier_stages_count(tmp_path: Path) -> None:
    net, low = network("zscore"), network("zscore")
    file = write(tmp_path / "scan.nii", noise())
    weights = random_weights(low, 7)
    first = PreviousNetwork(low, weights)
    case = Case((file,), NONE, PreviousNetwork(low, weights, first))
    assert [stage.previous for stage in case.stages] == [first, None]
    limits = replace(LIMITS, ram=2**30)
    assert case.earlier == (low, low)
    left, others = beside_weights(limits, alone(net), case.earlier)
    assert others == 2 * 4 * low.parameters
    assert left.ram == 2**30 - others
    assert room_of_files(case, alone(net), limits).allowed == 2**30 - others


def test_probabilities_take_what_they_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network()
    monkeypatch.setattr(probabilities, "PART_VALUES", 2**19)
    file = write(tmp_path / "scan.nii", noise())
    assert net.case is not None
    scan = open_scan([file], net.case, tmp_path)
    known = preparation_of_all(scan, net)
    case = Case((file,), NONE, probabilities=tmp_path / "a.npz")
    found = search_for(known, LIMITS, probabilities=True)
    assert not found.overhead.stored.label_maps
    assert search_for(known, LIMITS).overhead.stored.label_maps
    declared = room_for(case, scan, [known], [found]).steps
    maps = np.random.default_rng(2).standard_normal((3, *SIZE), np.float32)
    with h5py.File(tmp_path / "maps.h5", "w") as made:
        made.create_dataset("main", data=maps, chunks=(3, 16, 64, 64))
    taken = peak_of(lambda: write_labels_of_maps(tmp_path / "maps.h5", net))
    assert taken <= declared.labels + SMALL
    given = scan, known, tmp_path / "maps.h5", tmp_path / "a.npz"
    taken = peak_of(lambda: write_probabilities(*given))
    assert taken <= declared.writing * 2**19 // 2**22 + SMALL
    assert labels_of_maps_bytes(Vec3(900, 900, 900), 2) < 2**27


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data())
def test_no_crop_takes_more_than_its_scan(data: st.DataObject) -> None:
    """Slabs of a crop are found with the bytes that the whole scan declares."""
    extents = st.tuples(*[st.integers(8, 400)] * 3)
    size = Vec3(*data.draw(extents))
    crop = Vec3(*(data.draw(st.integers(max(1, extent // 3), extent)) for extent in size))
    factors = data.draw(st.tuples(*[st.floats(0.3, 2.5)] * 3))
    room = data.draw(st.integers(2**24, 2**30))
    order = data.draw(st.sampled_from([(3, 3, 3), (1, 1, 1)]))

    def image(size: Vec3, room: int) -> int:
        target = Vec3(*(max(1, round(e * f)) for e, f in zip(size, factors, strict=True)))
        return InputSlabs(Resampling(size, target, order), 2, room, 18, 4).nbytes

    def mask(size: Vec3, room: int) -> int:
        return slabs.mask_slab(size, 2, 4, room).nbytes

    def components(size: Vec3, room: int) -> int:
        return slabs.components_slab(size, RULES, room).nbytes

    for declare in (image, mask, components):
        declared = declare(size, room)
        assert declare(size, declared) == declared
        assert declare(crop, declared) <= max(declared, room)
    assert changed_bytes(crop, 2) <= changed_bytes(size, 2)
    assert scaling_bytes(crop, 2, 4) <= scaling_bytes(size, 2, 4)
    assert labels_of_maps_bytes(crop, 5) <= labels_of_maps_bytes(size, 5)


def test_removing_components_takes_what_it_declares(tmp_path: Path) -> None:
    net = network()
    file = write(tmp_path / "scan.nii", noise())
    assert net.case is not None
    scan = open_scan([file], net.case, tmp_path)
    known = preparation_of_all(scan, net)
    room = room_for(Case((file,), NONE), scan, [known], [search_for(known, LIMITS)], RULES)
    labels = np.random.default_rng(1).integers(0, 3, (1, *SIZE), np.uint8)
    np.save(tmp_path / "labels.npy", labels.repeat(4, axis=-1)[..., : SIZE[2]])

    found = joined_labels([Part(tmp_path / "labels.npy", known.crop)])

    def remove() -> None:
        without_components(found, tmp_path / "without.npy", RULES, room.steps.components)

    remove()
    assert peak_of(remove) <= room.steps.components + SMALL


@pytest.mark.parametrize(
    "steps",
    [
        (Standardize(nonzero=True),),
        (Stretch(each=True),),
        (ScaleRange((0, 300), clip=True), Stretch(), Standardize(each=True)),
    ],
)
def test_changing_values_takes_what_it_declares(
    tmp_path: Path, steps: tuple[ValueStep, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "SLAB_VALUES", 2**18)
    np.save(tmp_path / "input.npy", noise()[np.newaxis])
    taken = peak_of(lambda: change_values(tmp_path / "input.npy", steps))
    assert taken <= changed_bytes(Vec3(*SIZE), 1) + SMALL


def test_joining_labels_takes_what_components_declare(tmp_path: Path) -> None:
    stored = np.random.default_rng(1).integers(0, 3, (1, *SIZE), np.uint8)
    parts = []
    for number in range(3):
        path = tmp_path / f"labels-{number}.npy"
        np.save(path, stored)
        crop = Box(Vec3(0, 0, 0), Vec3(*SIZE))
        parts.append(Part(path, crop, ((0, 0), (1, 300 + number), (2, 7))))
    found = joined_labels(parts)

    def read() -> None:
        _ = found.array[:, :, :, :]

    read()  # compiles its kernel
    declared = (slabs.LABEL_BYTES + slabs.JOINED_BYTES) * Vec3(*SIZE).volume
    assert peak_of(read) <= declared + SMALL


def test_slabs_follow_from_the_memory() -> None:
    def nbytes(planes: int, components: int) -> int:
        return 1000 * planes + 10 * components

    size = Vec3(64, 10, 10)
    assert slab_within(2**40, size, nbytes) == Slab(64, MOST_COMPONENTS, 64_000 + 10 * 2**22)
    some = slab_within(100_000, size, nbytes)
    assert (some.planes, some.components, some.nbytes) == (32, 6_800, 100_000)
    least = slab_within(10_000, size, nbytes)
    assert (least.planes, least.components) == (1, LEAST_COMPONENTS)


@pytest.mark.parametrize("normalize", ["zscore, within: nonzero", "zscore"])
def test_a_case_that_cannot_fit_says_so_before_anything_is_written(
    tmp_path: Path, normalize: str
) -> None:
    net, file = network(normalize), write(tmp_path / "scan.nii", noise())
    case = Case((file,), tmp_path / "labels.nii")
    said = r"a case does not fit: writing needs 6\d\d MiB \(the process"  # more than any plan
    for ram in ("400MiB", "600MiB"):
        options = Options(limits=Choices(device="cpu", ram=ram, costs="built-in"))
        with pytest.raises(StepDoesNotFit, match=said):
            predict(case, net, random_weights(net, 7), Session(), options)
    assert [path.name for path in tmp_path.iterdir()] == ["scan.nii"]
    needed = room_of_files(case, alone(net), Choices(device="cpu", costs="built-in")).process
    assert needed > 512 * 2**20


def test_plans_that_are_kept_make_room_for_the_next_case(tmp_path: Path) -> None:
    net = network("zscore")
    session = Session(Choices(device="cpu", threads=1, costs="built-in"))
    options = Options(limits=Choices(device="cpu", threads=1, costs="built-in"))
    case = Case((write(tmp_path / "scan.nii", noise()[:8, 20:60, 20:60]),), tmp_path / "a.nii")
    predict(case, net, random_weights(net, 7), session, options)
    kept = session.prepared
    held = kept.held("cpu")
    assert held > 0
    with kept.taking(100, 0, held + 100):
        assert kept.held("cpu") == held
    with kept.taking(100, 1, held + 100):
        assert kept.held("cpu") == 0
    session.close()
