"""Commands for figures of papers: small cases of each, and what the figures say."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_gpu import emulated_gpu, needs_emulation
from emulated_plans import MACHINE
from paths import MACHINES, NETWORKS
from typer.testing import CliRunner

from bench.__main__ import app
from bench.ceilings import Ceilings
from bench.layers import layer
from bench.paper import planes
from bench.paper.curves import FIGURE_4, fft_operations
from bench.paper.side_by_side import ON_GPU, compare_shares, shares_of
from bench.record import Row, load
from bench.rounds import Effort
from planner.cost_model import BUILT_IN
from znni.core.shapes import Shape5, Vec3
from znni.primitives.catalogue import catalogue

NET = """\
name: tiny
layers:
  - conv: {features: 3, kernel: 2, activation: relu}
  - pool: {window: 2}
  - conv: {features: 2, kernel: 2}
"""
SHORT = ["--repeats", "1", "--budget", "0.01", "--threads", "1"]


def rows_of(tmp_path: Path, command: str) -> list[Row]:
    """Run a command, and return the rows that it saves."""
    out = tmp_path / "out.json"
    outcome = CliRunner().invoke(app, ["paper", *command.split(), "--out", str(out)])
    assert outcome.exit_code == 0, outcome.output
    return load(out, "evaluations").rows


def test_pruned_transforms_beside_padded_ones(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, " ".join(["pruned-ffts --kernel 2 --size 8 --maps 16", *SHORT]))
    assert [row["name"] for row in rows] == ["pruned", "padded with zeros"]
    assert rows[0]["gain"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"])
    assert rows[0]["published_gain"] == 5


@pytest.mark.slow
def test_types_of_lowering(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, " ".join(["lowering --kernel 3 --size 5", *SHORT]))
    assert len(rows) == 3 * 5
    assert {row["gain"] for row in rows if row["name"] == "lowered_expensive_lowering"} == {1}


def test_times_of_batches_are_of_one_image(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, " ".join(["batching --batch 2 --batch 1 --only direct", *SHORT]))
    one, two = rows[:2]
    assert (one["name"], two["name"]) == ("1 image", "2 images")
    assert two["image_seconds"] == two["seconds"] / 2
    assert two["gain"] == pytest.approx(one["image_seconds"] / two["image_seconds"])


@pytest.mark.slow
def test_the_fastest_of_each_family(tmp_path: Path) -> None:
    command = "regions --kernel 3 --output 4 --maps 2 --batch 1"
    rows = rows_of(tmp_path, " ".join([command, *SHORT]))
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert {"direct", "tiled FFT"} <= {row["family"] for row in rows}
    assert rows[0]["problem"] == 4


def test_layers_of_planes_beside_the_machines_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes, "LAYERS", [planes.PlaneLayer("tiny", "a figure", 2, 6, 3, 3)])
    rows = rows_of(tmp_path, " ".join(["planes --batch 2", *SHORT]))
    assert {row["case"] for row in rows} == {"tiny, 2 -> 3 maps of 6^2, kernel 3^2, 2 images"}
    direct = next(row for row in rows if row["family"] == "direct")
    assert direct["gain"] == 1
    peak = 2.0 * 2 * 3 * 4**2 * 2 * 3**2 / direct["seconds"] / direct["share_of_peak"]
    (ceilings,) = load(tmp_path / "out.json", "evaluations").about["ceilings"]
    assert peak == pytest.approx(Ceilings(**ceilings).flops)


def test_subsamplings_beside_fragments(tmp_path: Path) -> None:
    net = tmp_path / "tiny.yaml"
    net.write_text(NET)
    all_of_them, fragments = rows_of(
        tmp_path, " ".join([f"subsamplings --net {net} --output 2", *SHORT])
    )
    assert all_of_them["case"] == "tiny, direct, input 7x7x7"
    assert fragments["case"] == "tiny, direct, input 8x8x8"
    assert fragments["gain"] == pytest.approx(
        fragments["voxels_per_s"] / all_of_them["voxels_per_s"]
    )


def test_several_inputs_gain_more_with_one_pooling_than_with_two(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "fft-speedups --batch 1 --batch 4 --memory 1GiB")
    whole = [row for row in rows if "tiles" not in row["name"]]
    one, one_of_four, two, two_of_four = whole
    assert one["case"] == "one pooling, within 1.00 GiB"
    assert all(row["memory_gib"] <= 1 for row in rows)
    assert one["gain"] < one_of_four["gain"] < two_of_four["gain"] < two["gain"]
    operations, memory = fft_operations(FIGURE_4["two poolings"], 1, 24)
    assert two["name"] == "1 input, fragments of 24^3"
    assert memory / 2**30 == two["memory_gib"]
    assert operations > 0


def test_several_inputs_gain_nothing_if_kernels_are_transformed_once(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "fft-speedups --batch 1 --batch 2 --memory 1GiB --memory 4GiB")
    tiles = [row for row in rows if row["name"].endswith(", tiles")]
    assert [row["inputs"] for row in tiles] == [1, 2] * 4
    assert all(one["gain"] > two["gain"] for one, two in zip(tiles[::2], tiles[1::2], strict=True))


@pytest.mark.slow
def test_throughput_of_sizes(tmp_path: Path) -> None:
    there = MACHINES / "h200-node.yaml"
    command = f"sizes --net {NETWORKS / 'n337.yaml'} --machine {there} --output 32 --size 128"
    rows = rows_of(tmp_path, command)
    cases = [row["case"].split(", ")[1] for row in rows]
    assert cases == ["CPU-only", "GPU-only", "GPU + host RAM", "CPU-GPU"]
    assert all(row["memory_gib"] > 0 for row in rows)


def test_shares_of_a_batch_are_around_the_planned_one_and_quarters() -> None:
    assert shares_of(8, 0) == [1, 2, 4, 6]
    assert shares_of(8, 7) == [2, 4, 6, 7]
    assert shares_of(32, 12) == [8, 11, 12, 13, 14, 16, 24]


@pytest.mark.slow
def test_shares_of_a_fast_host_are_predicted_to_gain(tmp_path: Path) -> None:
    there = MACHINES / "h200-node.yaml"
    rows = rows_of(tmp_path, f"side-by-side --machine {there} --kernel 5 --batch 8 --size 48")
    seconds = {row["items_on_host"]: row["predicted_seconds"] for row in rows}
    planned = rows[0]["planned_on_host"]
    assert 0 < planned < 8
    assert min(seconds, key=seconds.__getitem__) == planned
    gains = {row["items_on_host"]: row["predicted_gain"] for row in rows}
    assert gains[0] == 1
    assert gains[planned] == pytest.approx(seconds[0] / seconds[planned])
    assert rows[-1]["name"] == "host alone"
    assert not any("seconds" in row for row in rows)


@pytest.mark.slow
@needs_emulation
def test_shares_are_measured_from_and_to_page_locked_memory() -> None:
    names = "direct", "host_ram_0.25GiB_gpu_direct"
    known = {name: catalogue(MACHINE)[name] for name in names}
    conv, shape = layer(Vec3.of(2), 2, 2), Shape5.of(4, 2, Vec3.of(5))
    with emulated_gpu():
        rows = compare_shares("here", known, BUILT_IN, Effort(1, 0.01), conv, shape)
    assert [row["name"] for row in rows] == [
        ON_GPU, *(f"{items} of 4 on the host" for items in (1, 2, 3)), "host alone"
    ]  # fmt: skip
    assert [row["family"] for row in rows][:2] == [names[1], f"1 {names[0]} beside 3 {names[1]}"]
    for row in rows:
        assert row["gain"] == pytest.approx(rows[0]["seconds"] / row["seconds"])
        assert row["predicted_seconds"] > 0
