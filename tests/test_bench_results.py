"""What becomes of measurements: records, tables, pictures, and the command that makes them."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from quick_benchmarks import CEILINGS, NETWORK, PATCH, QUICK

from bench.ceilings import Ceilings
from bench.layers import compare_layer, layer
from bench.plot import plot
from bench.published import published_rows
from bench.record import Record, load, save
from bench.scaling import layer_rows, network_rows, with_efficiency
from bench.table import table
from znni.errors import InvalidInput
from znni.machine import Machine
from znni.shapes import Shape5, Vec3

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@cache
def measured(kind: str, machine: Machine) -> list[dict[str, Any]]:
    conv, shape = layer(Vec3.of(2), 2, 2), Shape5.of(1, 2, Vec3.of(8))
    if kind == "layer":
        return compare_layer(machine, conv, shape, ["direct"], QUICK, CEILINGS, peers=False)
    if kind == "network":
        made = [{"network": "n337", "name": "znni", "seconds": 1.0, "voxels_per_s": 1e5}]
        return made + published_rows("n337")
    ceilings = [Ceilings(threads, 2e11, 1e11, 1e10) for threads in (1, 2)]
    layers = layer_rows(ceilings, [(conv, shape)], ["direct"], QUICK)
    networks = network_rows((1, 2), NETWORK, PATCH.z, 2 << 30, QUICK)
    return with_efficiency([*layers, *networks])


@pytest.mark.parametrize("kind", ["layer", "network", "scaling"])
@needs_matplotlib
def test_results_go_through_json_to_a_table_and_a_picture(
    kind: Any, machine: Machine, tmp_path: Path
) -> None:
    rows = measured(kind, machine)
    save(tmp_path / "rows.json", kind, rows, [CEILINGS])
    record = load(tmp_path / "rows.json")
    assert record.kind == kind
    assert table(kind, record.rows) == table(kind, rows)
    assert len(table(kind, rows).splitlines()) == len(rows) + 2
    assert record.about["ceilings"][0]["sgemm_flops"] == CEILINGS.sgemm_flops
    plot(record, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_compares_with_the_fewest_threads(machine: Machine) -> None:
    rows = [row for row in measured("scaling", machine) if row["name"] in {"direct", "znni"}]
    by_threads = {(row["name"], row["threads"]): row for row in rows}
    for name in ("direct", "znni"):
        one, two = by_threads[name, 1], by_threads[name, 2]
        assert (one["speedup"], one["efficiency"]) == (1.0, 1.0)
        assert two["speedup"] == pytest.approx(two["voxels_per_s"] / one["voxels_per_s"])
        assert two["efficiency"] == pytest.approx(two["speedup"] / 2)


def test_what_lacks_a_value_has_a_dash() -> None:
    lines = table("network", [{"network": "a", "name": "b", "error": None, "skipped": "killed"}])
    assert lines.splitlines() == [
        "| network | name | note   |",
        "|---------|------|--------|",
        "| a       | b    | killed |",
    ]


def test_a_file_without_results_and_a_profiles_picture_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds no results"):
        load(tmp_path / "other.json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="make no picture"):
        plot(Record("profile", [], {}), tmp_path / "none.png")


def test_the_command_measures_saves_and_prints(tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    command = f"layer --kernel 2 --size 8 --features 2 --out-features 2 --no-peers --out {out}"
    run = [sys.executable, "-m", "bench"]
    root = Path(__file__).parents[1]
    printed = subprocess.run(
        [*run, *command.split(), "--only", "direct", "--repeats", "1"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "ceilings with" in printed
    again = subprocess.run(
        [*run, "table", out], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert again in printed
    chosen = subprocess.run(
        [*run, "choices", out], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert "regret" in chosen
    refused = subprocess.run(
        [*run, "table", tmp_path / "no"], cwd=root, capture_output=True, text=True, check=False
    )
    assert refused.returncode == InvalidInput.exit_code
    assert refused.stderr.startswith("bench: error: ")
