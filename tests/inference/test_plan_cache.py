"""Plans kept in the user's cache: found again, and never where something differs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fakes import Lazy, fake_catalogue, fake_gpu_catalogue, gpu, machine
from small_search import CATALOGUE, LIMIT, NETWORK, OUTPUT, OVERHEAD

from bench.unet_networks import UNETS
from planner.cost_model import BUILT_IN, BuiltInModel
from planner.overhead import SecondsOnce
from planner.search import Search
from znni.calibration.model import MeasuredModel
from znni.core.processors import DeviceChoice
from znni.core.resampling import Resampling
from znni.core.shapes import Vec3
from znni.core.value_cache import store_value
from znni.engine.stages.read import ReadModel
from znni.inference import plan_cache, planning, text_cache
from znni.inference.plan_cache import fastest_cached_or_found, smallest_cached_or_found
from znni.network.geometry import with_window
from znni.network.layer_geometry import Padding
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.window import Window
from znni.plans.plan import Plan


def small_search(limit: int = LIMIT, output: Vec3 = OUTPUT) -> Search:
    return Search(NETWORK, output, machine(limit), Lazy(CATALOGUE, "small"), OVERHEAD)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


def test_a_kept_plan_is_the_one_that_was_found(folder: Path) -> None:
    found, kept = fastest_cached_or_found(small_search())
    assert not kept
    assert len(list(folder.iterdir())) == 1
    again, kept = fastest_cached_or_found(small_search())
    assert kept
    assert again == found
    assert again.to_json() == found.to_json()


CHANGES: dict[str, Callable[[Search], dict[str, Any]]] = {
    "network": lambda s: {"given": replace(s.given, name="other")},
    "input": lambda s: {"given": replace(s.given, scaling=replace(s.given.scaling, scale=2))},
    "volume": lambda _: {"output": Vec3(40, 40, 40)},
    "threads": lambda s: {
        "machine": replace(s.machine, host=replace(s.machine.host, threads=3)),
    },
    "storage": lambda s: {
        "machine": replace(s.machine, storage=replace(s.machine.storage, read=1e9)),
    },
    "primitives": lambda s: {"catalogue": Lazy(s.catalogue, "others")},
    "processor": lambda s: {
        "machine": replace(s.machine, host=replace(s.machine.host, name="another")),
    },
    "operations": lambda s: {
        "machine": replace(s.machine, host=replace(s.machine.host, flops=2 * s.machine.host.flops)),
    },
    "bandwidth": lambda s: {
        "machine": replace(s.machine, host=replace(s.machine.host, bandwidth=1e9)),
    },
    "bfloat16": lambda s: {
        "machine": replace(
            s.machine, host=replace(s.machine.host, bfloat16=not s.machine.host.bfloat16)
        ),
    },
    "GPUs": lambda s: {"machine": replace(s.machine, gpus=(gpu(),))},
    "GPUs that compute": lambda s: {"machine": replace(s.machine, used_gpus=2)},
    "whose machine": lambda s: {"machine": replace(s.machine, absent=not s.machine.absent)},
    "overhead": lambda _: {"overhead": replace(OVERHEAD, process=2000)},
    "warm memory": lambda _: {"overhead": replace(OVERHEAD, warm=2**30)},
    "times beside the layers": lambda _: {
        "overhead": replace(OVERHEAD, stages=(*OVERHEAD.stages, ReadModel(1e-9)))
    },
    "costs": lambda _: {"model": BuiltInModel("another")},
    "pieces": lambda _: {"division": "none"},
    "device": lambda _: {"device": "cpu"},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_plan_is_searched_for_if_anything_differs(what: str) -> None:
    fastest_cached_or_found(small_search())
    search = small_search()
    _, kept = fastest_cached_or_found(replace(search, **CHANGES[what](search)))
    assert not kept


def test_on_a_gpu_a_kept_plan_has_the_seconds_of_another_start() -> None:
    """Runs note how long a GPU takes to start. Every plan takes as much longer."""

    def searched(device: DeviceChoice, cuda: float, warm: float) -> Search:
        overhead = replace(OVERHEAD, once=SecondsOnce(cuda=cuda), warm=warm)
        there = replace(machine(2**34), gpus=(gpu(10**7),))
        known = Lazy(fake_gpu_catalogue() | fake_catalogue(), "both")
        network, volume = small_search().network, Vec3(40, 40, 40)
        return Search(network, volume, there, known, overhead, device=device)

    slow, kept = fastest_cached_or_found(searched("gpu", 6.0, 2**29))
    assert not kept
    quick, kept = fastest_cached_or_found(searched("gpu", 0.5, 2**30))
    assert kept
    assert quick == searched("gpu", 0.5, 2**30).fastest()[0]
    assert slow.time.building - quick.time.building == pytest.approx(5.5)
    assert not fastest_cached_or_found(searched("auto", 6.0, 2**29))[1]
    assert not fastest_cached_or_found(searched("auto", 0.5, 2**29))[1]


@pytest.mark.slow
def test_a_kept_plan_computes_as_many_windows_at_once() -> None:
    """The network that is asked for computes one at a time; a plan chooses how many."""
    network = with_window(UNETS["nnunet-instance"](), Window(Vec3.of(64)))

    def found() -> tuple[Plan, bool]:
        some = planning.search(network, (128, 128, 192), machine="h100", device="gpu")
        return fastest_cached_or_found(some)

    plan, kept = found()
    assert not kept
    assert plan.network.together > 1
    again, kept = found()
    assert kept
    assert again.network.together == plan.network.together
    assert again == plan
    assert str(again) == str(plan)


def test_a_plan_of_resampled_windows_is_kept() -> None:
    """Its network remembers arrays, which are not stored."""
    source, target = Vec3(16, 16, 24), Vec3(24, 24, 24)
    resampled = Resampling(source, target, (1, 1, 1))
    window = Window(Vec3.of(16), volume=source, resampled=resampled)
    one = Vec3(1, 1, 1)
    layer = Conv("conv", 1, 2, Vec3(3, 3, 3), "identity", padding=Padding(one, one))
    network = with_window(Network.chain("resampled", 1, (layer,)), window)

    def found() -> tuple[Plan, bool]:
        return fastest_cached_or_found(planning.search(network, tuple(source), device="cpu"))

    plan, kept = found()
    assert not kept
    assert plan.network.window
    assert plan.network.window.resampled
    assert plan.network.window.resampled.taps  # as a run has it
    assert found() == (plan, True)


def test_other_measurements_search_anew() -> None:
    """A model of measured times is told apart by its measurements, and others by nothing."""

    class Measured(MeasuredModel):
        def __init__(self, told: str) -> None:
            self.source, self.told = "measured", told

        @property
        def fingerprint(self) -> str:
            return self.told

        def factors(self, *given: Any) -> Any:
            return BUILT_IN.factors(*given)

    def found(model: Any) -> bool:
        search = small_search()
        search = Search(
            search.network, search.output, search.machine, search.catalogue, search.overhead, model
        )
        return fastest_cached_or_found(search)[1]

    assert [found(Measured(told)) for told in "aabba"] == [False, True, False, True, True]
    unknown = mock.Mock(source="", factors=BUILT_IN.factors, estimate=BUILT_IN.estimate)
    assert [found(unknown) for _ in "12"] == [False, False]


def test_primitives_that_nothing_tells_apart_search_anew() -> None:
    search = Search(NETWORK, OUTPUT, machine(LIMIT), CATALOGUE, OVERHEAD)
    assert [fastest_cached_or_found(search)[1] for _ in "12"] == [False, False]


def test_another_release_or_another_cut_point_searches_anew() -> None:
    fastest_cached_or_found(small_search())
    with mock.patch.object(plan_cache.version, "__version__", "another"):
        assert not fastest_cached_or_found(small_search())[1]
    through = small_search().through(small_search().cut_points)
    assert not fastest_cached_or_found(through)[1]
    assert fastest_cached_or_found(through)[1]
    assert fastest_cached_or_found(small_search())[1]


def real_search(**options: Any) -> Search:
    # What is available may become more between two searches, and then a plan counts for less.
    return planning.search(small_search().network, (40, 40, 48), **{"ram": 2**30} | options)


def test_a_kept_plan_needs_only_the_primitives_that_it_names() -> None:
    """Neither prices nor the other primitives are looked at."""
    found, kept = fastest_cached_or_found(real_search(device="cpu"))
    assert not kept
    again = real_search(device="cpu")
    assert fastest_cached_or_found(again) == (found, True)
    assert again.calls == 0
    assert "all_found" not in again.catalogue.__dict__


@pytest.mark.parametrize(
    "options", [{"accuracy": "bfloat16"}, {"device": "auto"}, {"costs": "built-in"}, {"threads": 1}]
)
def test_primitives_that_were_not_looked_at_are_told_apart(options: dict[str, Any]) -> None:
    usual = {"device": "cpu", "accuracy": "float32", "threads": 2}
    fastest_cached_or_found(real_search(**usual))
    assert not fastest_cached_or_found(real_search(**usual | options))[1]
    assert fastest_cached_or_found(real_search(**usual))[1]


def test_other_code_searches_anew() -> None:
    fastest_cached_or_found(small_search())
    with mock.patch.object(plan_cache, "state_of_source", return_value="other code"):
        assert not fastest_cached_or_found(small_search())[1]


def test_the_smallest_plan_is_kept_for_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = smallest_cached_or_found(small_search())
    assert found == small_search().smallest()
    fastest, kept = fastest_cached_or_found(small_search())
    assert not kept  # the smallest plan does not serve as the fastest one
    assert fastest.seconds < found.seconds
    monkeypatch.setattr(Search, "smallest", mock.Mock(side_effect=AssertionError))
    assert smallest_cached_or_found(small_search()) == found
    with pytest.raises(AssertionError):
        smallest_cached_or_found(small_search(LIMIT - 1))


def test_under_less_memory_a_plan_serves_if_it_fits() -> None:
    found, _ = fastest_cached_or_found(small_search())
    again, kept = fastest_cached_or_found(small_search(found.memory.total))
    assert kept
    assert replace(again, machine=found.machine) == found
    less, kept = fastest_cached_or_found(small_search(found.memory.total - 1))
    assert not kept
    assert less.memory.total < found.memory.total


@pytest.mark.slow
def test_under_more_memory_a_kept_plan_is_only_where_the_search_begins() -> None:
    for limit in (60_000, 100_000, 200_000, LIMIT):
        expected = small_search(limit).fastest()[0]
        found, kept = fastest_cached_or_found(small_search(limit))
        assert not kept
        assert found.seconds == expected.seconds
        assert found.machine == expected.machine


def test_files_of_something_else_count_as_absent(folder: Path) -> None:
    found, _ = fastest_cached_or_found(small_search())
    (path,) = folder.iterdir()
    for content in (b"", b"{}", b"\xff\x00", path.read_bytes()[:500]):
        path.write_bytes(content)
        assert fastest_cached_or_found(small_search()) == (found, False)
        assert fastest_cached_or_found(small_search()) == (found, True)


def test_a_plan_of_other_primitives_is_not_taken(folder: Path) -> None:
    found, _ = fastest_cached_or_found(small_search())
    (path,) = folder.iterdir()
    text = found.to_json().replace('"direct"', '"gone"').replace('"fft_tiled"', '"gone"')
    store_value(path, Plan.from_json(text))
    again, kept = fastest_cached_or_found(small_search())
    assert not kept
    assert again == found


def test_in_the_users_cache_plans_that_nobody_uses_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(text_cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = tmp_path / "znni" / "plans" / "old-0-0.plan"
    old.parent.mkdir(parents=True)
    old.write_text("")
    os.utime(old, (0, 0))
    fastest_cached_or_found(small_search())
    assert not old.exists()
    assert len(list(old.parent.iterdir())) == 1


def test_writers_at_the_same_time_leave_whole_files(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fastest_cached_or_found(small_search())[0], range(16)))
    assert all(plan == found[0] for plan in found)
    assert [path.suffix for path in folder.iterdir()] == [".plan"]


def test_a_folder_that_cannot_be_written_costs_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("a file in its place")
    with caplog.at_level(logging.WARNING, "znni"):
        fastest_cached_or_found(small_search())
    assert "plans and measurements are not kept there" in caplog.text


def test_none_are_kept_if_so_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(text_cache.FOLDER_VARIABLE, "none")
    fastest_cached_or_found(small_search())
    assert not fastest_cached_or_found(small_search())[1]
    assert not folder.exists()


def test_a_fresh_plan_is_kept(folder: Path) -> None:
    planning.fastest(small_search(), fresh=True)
    (file,) = folder.iterdir()
    os.utime(file, (0, 0))
    planning.fastest(small_search(), fresh=True)
    assert file.stat().st_mtime > 0


def test_a_search_begins_at_a_known_plan() -> None:
    found = small_search().fastest()[0]
    search = small_search()
    assert search.fastest(known=found)[0] == found
    assert search.calls <= small_search_calls()


def small_search_calls() -> int:
    search = small_search()
    search.fastest()
    return search.calls


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_kept_plan_loads_no_primitives(device: DeviceChoice) -> None:
    first, again = (replace(small_search(), device=device) for _ in range(2))
    assert planning.fastest(first) == planning.fastest(again)
    assert "_searches" in vars(first)
    assert "_searches" not in vars(again)


def test_a_plan_does_not_depend_on_the_name_of_the_weights() -> None:
    search = [
        planning.search(replace(NETWORK, weights=weights), (40, 40, 40), ram=2**30, device="cpu")
        for weights in (None, Path("some.npz"))
    ]
    (first, was_kept), (second, is_kept) = map(fastest_cached_or_found, search)
    assert (was_kept, is_kept) == (False, True)
    assert first.network.weights is second.network.weights is None
