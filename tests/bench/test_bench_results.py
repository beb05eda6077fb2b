"""Records of measurements: tables, pictures, pages, and the command that makes them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import unpack_archive, which
from typing import Any

import pytest
from paths import ROOT
from quick_benchmarks import CEILINGS, NETWORK, PATCH, QUICK, in_process
from typer.testing import CliRunner

import bench.record
from bench import rooflines
from bench.__main__ import app
from bench.ceilings import Ceilings
from bench.layers import compare_layer, layer
from bench.paper.published import published_rows
from bench.record import Record, Row, join, load, save
from bench.report import colours_of, plot, report
from bench.scaling import layer_rows, network_rows, with_efficiency
from bench.table import table
from znni.core.errors import InvalidInput
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine

RESULTS = ROOT / "bench" / "results"

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@cache
def measured(kind: str, machine: Machine) -> list[dict[str, Any]]:
    conv, shape = layer(Vec3.of(2), 2, 2), Shape5.of(1, 2, Vec3.of(8))
    if kind == "layer":
        return compare_layer(machine, conv, shape, ["direct"], QUICK, CEILINGS, peers=())
    if kind == "network":
        made = [{"network": "n337", "name": "znni", "seconds": 1.0, "voxels_per_s": 1e5}]
        return made + published_rows("n337")
    ceilings = [Ceilings(threads, 2e11, 1e11, 1e10) for threads in (1, 2)]
    layers = layer_rows(ceilings, [(conv, shape)], ["direct"], QUICK)
    networks = network_rows(ceilings, NETWORK, PATCH.z, 2 << 30, QUICK)
    return with_efficiency([*layers, *networks])


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", ["layer", "network", "scaling"])
@needs_matplotlib
def test_results_go_through_json_to_a_table_and_a_picture(
    kind: Any, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    rows = measured(kind, machine)
    save(tmp_path / "rows.json", kind, rows, [CEILINGS])
    record = load(tmp_path / "rows.json")
    assert record.kind == kind
    assert table(kind, record.rows) == table(kind, rows)
    assert len(table(kind, rows).splitlines()) == len(rows) + 2
    assert record.about["ceilings"][0]["sgemm_flops"] == CEILINGS.sgemm_flops
    plot([record], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_scaling_compares_with_the_fewest_threads_of_the_same_work() -> None:
    rows = [
        {"work": work, "name": name, "threads": threads, "voxels_per_s": speed}
        for work, name, threads, speed in [
            ("a", "direct", 8, 30.0),
            ("a", "direct", 2, 10.0),
            ("a", "fft", 4, 7.0),
            ("b", "direct", 4, 5.0),
            ("b", "direct", 8, 5.0),
        ]
    ]
    rows.append({"work": "b", "name": "direct", "threads": 1, "skipped": "killed"})
    found = [(row.get("speedup"), row.get("efficiency")) for row in with_efficiency(rows)]
    assert found == [(3.0, 0.75), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (None, None)]


def test_scaling_tells_the_speed_up_that_the_machine_allows() -> None:
    row: Row = {"work": "a", "name": "direct"}
    one = {"threads": 1, "voxels_per_s": 10.0, "achieved": 0.8}
    many = {"threads": 8, "voxels_per_s": 60.0, "achieved": 0.6}
    allowed = [it["floor_speedup"] for it in with_efficiency([row | many, row | one])]
    assert allowed == pytest.approx([8.0, 1.0])


@needs_matplotlib
def test_a_pictures_caption_tells_the_threads_of_its_rows(tmp_path: Path) -> None:
    from matplotlib import rc_context

    rows = [
        {"work": "a", "name": "direct", "threads": threads, "voxels_per_s": 1.0}
        for threads in (48, 24)
    ]
    save(tmp_path / "rows.json", "scaling", with_efficiency(rows), [CEILINGS])
    with rc_context({"svg.fonttype": "none"}):
        plot([load(tmp_path / "rows.json")], tmp_path / "picture.svg")
    assert "24, 48 threads" in (tmp_path / "picture.svg").read_text()


@pytest.mark.skipif(which("git") is None, reason="git is not installed")
def test_a_record_tells_the_revision_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def revision() -> str | None:
        bench.record.revision.cache_clear()
        save(tmp_path / "rows.json", "layer", [], [CEILINGS])
        told: str | None = load(tmp_path / "rows.json").about["revision"]
        return told

    monkeypatch.setattr(bench.record, "__file__", str(tmp_path / "record.py"))
    assert revision() is None
    user = ["-c", "user.name=a", "-c", "user.email=b@c"]
    code, result = tmp_path / "code.py", tmp_path / "results" / "layers.json"
    result.parent.mkdir()
    for path in (code, result):
        path.write_text("first")
    for command in (["init"], ["add", str(code), str(result)], [*user, "commit", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    commit = revision() or ""
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    result.write_text("second")
    assert revision() == commit
    code.write_text("second")
    assert revision() == f"{commit}-dirty"
    attributes, file = tmp_path / ".gitattributes", tmp_path / "revision.txt"
    attributes.write_text("revision.txt export-subst")
    file.write_text("$Format:%h$")
    for command in (["add", str(attributes), str(file)], [*user, "commit", "-am", "third"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True, capture_output=True)
    commit = revision() or ""
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    archive = ["git", "archive", "--output", "copy.tar", "HEAD", "revision.txt"]
    subprocess.run(archive, cwd=tmp_path, check=True)
    monkeypatch.setenv("PATH", "")
    assert revision() is None
    unpack_archive(tmp_path / "copy.tar", tmp_path, filter="data")
    assert revision() == commit


def test_records_of_several_commands_are_joined(tmp_path: Path) -> None:
    made = []
    for number in (1, 2, 3):
        save(tmp_path / f"{number}.json", "search", [{"network": number}], [CEILINGS])
        found = load(tmp_path / f"{number}.json")
        about = {"command": f"command {number}", "date": f"day {number}", "revision": None}
        made.append(replace(found, about=found.about | about))
    made[1].about["revision"] = "abc"
    joined = join(made)
    assert [row["network"] for row in joined.rows] == [1, 2, 3]
    assert joined.about["command"] == "command 1\ncommand 2\ncommand 3"
    assert (joined.about["revision"], joined.about["date"]) == ("abc", "day 1 to day 3")
    assert len(joined.about["ceilings"]) == 3
    assert "command 1\ncommand 2" in report({"joined.json": joined})
    joined.about["command"] = "command --plan /tmp/a-b/c/plan.json --out /tmp/out.json"
    assert "\ncommand --plan plan.json --out out.json\n" in report({"joined.json": joined})
    other = replace(made[0], about=made[0].about | {"machine": {"processor": "another"}})
    for wrong, said in [(other, "different machine"), (replace(made[0], kind="shares"), "shares")]:
        with pytest.raises(InvalidInput, match=said):
            join([made[0], wrong])


def test_tables_are_of_several_files_of_one_kind(tmp_path: Path) -> None:
    for kind, network in (("search", "first"), ("search", "second"), ("shares", "third")):
        save(tmp_path / f"{network}.json", kind, [{"network": network}], [])  # type: ignore[arg-type]
    first, second, third = (str(tmp_path / f"{n}.json") for n in ("first", "second", "third"))
    out = tmp_path / "joined.json"
    made = CliRunner().invoke(app, ["table", first, second, "--out", str(out)])
    assert [line.split()[1] for line in made.output.splitlines()[2:]] == ["first", "second"]
    assert [row["network"] for row in load(out).rows] == ["first", "second"]
    refused = CliRunner().invoke(app, ["table", first, third])
    assert "results of shares and of search make no table together" in str(refused.exception)
    refused = CliRunner().invoke(app, ["table", "--choices", first])
    assert "holds no results" in str(refused.exception)


def test_a_kernel_larger_than_its_input_is_refused() -> None:
    outcome = CliRunner().invoke(app, ["layers", "--kernel", "7", "--pool", "2", "--size", "7"])
    assert isinstance(outcome.exception, InvalidInput)
    assert "needs 8 voxels per axis: --size 7 is less" in str(outcome.exception)


def test_what_lacks_a_value_has_a_dash() -> None:
    lines = table("network", [{"network": "a", "name": "b", "error": None, "skipped": "killed"}])
    assert lines.splitlines() == [
        "| network | name | note   |",
        "|---------|------|--------|",
        "| a       | b    | killed |",
    ]


def test_a_single_round_has_neither_spread_nor_range() -> None:
    single = {"name": "a", "spread": None, "ratio_to_torch": 7.434, "ratio_lowest": None}
    several = {"name": "b", "spread": 0.5, "ratio_to_torch": 2, "ratio_lowest": 1}
    lines = table("network", [single, {**several, "ratio_highest": 3}])
    assert lines.splitlines() == [
        "| name | spread | x torch fp32        |",
        "|------|--------|---------------------|",
        "| a    | -      | 7.43                |",
        "| b    | 50%    | 2.00 (1.00 to 3.00) |",
    ]


@needs_matplotlib
def test_a_picture_is_of_several_files_of_one_kind(tmp_path: Path) -> None:
    rows = [
        {"work": "a", "name": name, "threads": 2, "voxels_per_s": 1.0} for name in ("direct", "fft")
    ]
    about = {"date": "today", "machine": {"processor": "one", "threads": 2}}
    records = [Record("scaling", with_efficiency([row]), about) for row in rows]
    plot(records, tmp_path / "picture.svg")
    with pytest.raises(InvalidInput, match="results of layer and scaling make no picture together"):
        plot([*records, Record("layer", rows, about)], tmp_path / "picture.svg")


@needs_matplotlib
@pytest.mark.parametrize("count", [3, 20, 45])
def test_no_two_lines_of_a_picture_have_a_colour(count: int) -> None:
    colours = colours_of(str(name // 2) for name in range(2 * count))
    assert len(colours) == len(set(colours.values())) == count


def test_a_file_without_results_and_a_profiles_picture_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidInput, match="holds no results"):
        load(tmp_path / "other.json")
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="make no picture"):
        plot([Record("profile", [], {})], tmp_path / "none.png")


def test_the_command_measures_saves_and_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    out, command = tmp_path / "layers.json", CliRunner()
    measured = f"layers --kernel 2 --size 8 --features 2 --out-features 2 --no-peers --out {out}"
    done = command.invoke(app, [*measured.split(), "--only", "direct", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    assert "ceilings with" in done.stdout
    assert command.invoke(app, ["table", str(out)]).stdout in done.stdout
    assert "regret" in command.invoke(app, ["table", "--choices", str(out)]).stdout


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    wrong = [sys.executable, "-m", "bench", "table", str(tmp_path / "no")]
    done = subprocess.run(wrong, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == InvalidInput.exit_code
    assert done.stderr.startswith("bench: error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("none", [["--repeats", "0"], ["--budget", "0"]])
@pytest.mark.parametrize(
    "command",
    [["layers", "--kernel", "3"], ["network", "--net", "a"], ["scaling", "--threads", "1"]],
)
def test_the_command_refuses_to_measure_nothing(command: list[str], none: list[str]) -> None:
    refused = CliRunner().invoke(app, [*command, *none])
    assert refused.exit_code == 2
    assert none[0] in refused.output


def test_rooflines_say_what_bounds_each_kernel() -> None:
    steps: list[Row] = [
        {"primitive": "fast", "seconds": 0.002, "floor_seconds": 0.0015, "bound": "bytes"},
        {"primitive": "slow", "seconds": 0.003, "floor_seconds": 0.001, "bound": "flops"},
        {"primitive": "slow", "seconds": 0.003, "floor_seconds": 0.0005, "bound": "bytes"},
    ]
    row: Row = {"network": "net", "window": "8x8x8", "seconds": 0.006, "steps": steps}
    peer: Row = {"network": "net", "window": "8x8x8", "seconds": 0.006, "name": "torch"}
    found = list(rooflines.patches_of(Record("unets", [row, peer], {})))
    (line,) = rooflines.by_network(found)
    assert (line["floor"], line["by bytes"], line["achieved"]) == ("3.00 ms", "2.00 ms", "50%")
    slow, fast = rooflines.by_kernel(found)
    assert (slow["primitive"], slow["share"], slow["mostly"]) == ("`slow`", "75%", "operations")
    assert (fast["steps"], fast["achieved"], fast["mostly"]) == ("1", "75%", "bytes")


def test_rooflines_of_a_profile_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rooflines.rooflines_command([RESULTS / "predicted-h200.json"])
    assert capsys.readouterr().out.count("| n337 |") == 6
    with pytest.raises(InvalidInput, match="have no steps; measure again"):
        rooflines.rooflines_command([RESULTS / "unets-nnunet-2-cores.json"])
