"""How errors and reports are worded: for Python and the command line alike, in good grammar."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import znni
from planner.cost_model import NOT_MEASURED
from znni.core.errors import InvalidInput, option
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import Vec3
from znni.core.text import counted, in_units
from znni.engine.checks import check_features
from znni.engine.report import Report
from znni.network.layers import Conv
from znni.network.network import Network
from znni.plans.band import MEASURED_HERE
from znni.plans.job_seconds import JobSeconds, StageSeconds
from znni.plans.plan import Plan
from znni.plans.plan_text import plan_table
from znni.plans.totals import PlanTime
from znni.volumes.array import ArrayVolume

LIBRARY = Path(znni.__file__).parent
ONE_OF_ALL = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(1, 1, 1), "relu"),))

pytestmark = pytest.mark.usefixtures("fake_primitives")


@pytest.fixture
def plan() -> Plan:
    return znni.plan(ONE_OF_ALL, (4, 5, 6), threads=1)


def test_a_remedy_names_an_option_as_both_callers_give_it() -> None:
    assert option("border", "same") == "border='same' (--border same)"
    assert option("threads", 2) == "threads=2 (--threads 2)"
    assert option("overwrite", True) == "overwrite=True (--overwrite)"
    assert option("resume", False) == "resume=False (--no-resume)"
    error = DoesNotFit(needed=3 << 20, allowed=1 << 20, device="cpu", layer="c", patch=(1, 2, 3))
    assert "give ram='3MiB' (--ram 3MiB) or more" in str(error)
    error = DoesNotFit(
        needed=3 << 20, allowed=1, device="gpu", layer="c", patch=(1, 2, 3), sensible=9 << 20
    )
    assert "the process" not in str(error)
    assert "give gpu_memory='3MiB' (--gpu-memory 3MiB) at least, or 9MiB for half of" in str(error)
    with pytest.raises(InvalidInput, match=r"or border='same' \(--border same\) to pad it"):
        znni.plan(Network.chain("n", 1, (Conv("c", 1, 1, Vec3(9, 9, 9), "relu"),)), (4, 5, 6))


def flags_alone(source: str) -> list[str]:
    """Options of the command line in a module's texts that do not follow the Python ones."""
    tree = ast.parse(source)
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    documentation = {id(value) for value in statements if isinstance(value, ast.Constant)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
        and re.search(r"(?<!\()(?<!\(znni plan )(?<!znni calibrate )--[a-z]", node.value)
    ]


@pytest.mark.slow
def test_the_library_names_no_option_for_the_command_line_alone() -> None:
    assert flags_alone('raise InvalidInput(f"{path}: exists; give --overwrite")')
    assert not flags_alone('"""As --border same."""\nx = "border=1 (--border 1)"')
    of_other_programs = ("dask_clusters.py", "kubernetes.py", "slurm.py", "nnunet_results.py")
    with_help = ("run_options.py",)  # of the command line
    with_commands = ("several_gpus.py",)  # that start processes
    paths = [
        path
        for path in LIBRARY.rglob("*.py")
        if "cli" not in path.parts
        and path.name not in (*of_other_programs, *with_help, *with_commands)
    ]
    assert len(paths) > 20
    for path in paths:
        assert not flags_alone(path.read_text()), path


def test_one_is_not_several(plan: Plan) -> None:
    assert [counted(n, "block") for n in (0, 1, 1200)] == ["0 blocks", "1 block", "1,200 blocks"]
    lines = plan_table(plan).splitlines()
    network, machine = (
        next(it for it in lines if it.startswith(key)) for key in ("network", "machine")
    )
    assert "one: 1 layer, 2 parameters, 1 -> 1 map, " in network
    assert ", 1 thread, " in machine
    two = Network.chain("two", 2, (Conv("c", 2, 1, Vec3(1, 1, 1), "relu"),))
    with pytest.raises(InvalidInput, match="the volume has 1 map and network two takes 2"):
        check_features(ArrayVolume(np.zeros((4, 5, 6))), two)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (StageSeconds(host_layers=4.0), "host layers set the pace"),
        (StageSeconds(reading=4.0), "reading sets the pace"),
    ],
)
def test_a_plan_says_which_stage_sets_the_pace(plan: Plan, patch: StageSeconds, said: str) -> None:
    assert f": {said}" in str(replace(plan, time=PlanTime(2.0, 0.5, patch)))


def test_a_report_sets_what_was_measured_beside_what_was_predicted(plan: Plan) -> None:
    patch = StageSeconds(reading=0.25, host_layers=4.0, writing=0.75)
    plan = replace(plan, time=PlanTime(2.0, 0.5, patch))
    busy = StageSeconds(reading=0.3, host_layers=1.5, gpu_layers=0.4, writing=0.2)
    time = JobSeconds(building=6.0, running=2.0, busy=busy)
    report = Report(plan, (), 120, time, 3 << 20, {}, "")
    said, *table = str(report).splitlines()
    assert said == (
        "120 voxels in 8.0 s; host layers set the pace, busy 75% of the time; "
        f"time predicted between 5.2 s and 18.8 s nine times of ten ({NOT_MEASURED})"
    )
    rows = {tuple(line.split()) for line in table}
    assert {
        ("measured", "predicted", "waiting"),
        ("voxels/s", "15", "16"),
        ("time", "8.0", "s", "7.5", "s", "(5.2", "s", "to", "18.8", "s)"),
        ("building", "6.0", "s", "2.0", "s"),
        ("running", "2.0", "s", "5.5", "s"),
        ("reading", "0.3", "s", "0.2", "s", "1.7", "s"),
        ("host", "layers", "1.5", "s", "4.5", "s", "0.5", "s"),
        ("GPU", "layers", "0.4", "s", "0.0", "s", "1.6", "s"),
        ("writing", "0.2", "s", "0.8", "s", "1.8", "s"),
        ("peak", "memory", "3", "MiB", *in_units(plan.memory.total).split()),
    } <= rows
    on_gpu = replace(plan, gpu_memory=replace(plan.memory, process=0))
    *_, beside, advice = str(replace(report, plan=on_gpu, gpu_peak_memory=5 << 20)).splitlines()
    assert advice.startswith(
        "running took 36% of the time predicted; if that was not for other programs, znni "
    )
    promised = in_units(on_gpu.gpu_memory.total)
    assert " ".join(beside.split()) == f"GPU memory 5 MiB {promised}"
    fallen = replace(report, fallbacks=(plan, plan), accuracy_note="bfloat16 in c")
    assert "; memory ran out 2 times; accuracy bfloat16 in c; time predicted" in str(fallen)


def test_a_report_says_so_if_a_prediction_was_far_off(plan: Plan) -> None:
    plan = replace(plan, time=PlanTime(2.0, 0.5, StageSeconds(host_layers=4.0)))
    computing = StageSeconds(host_layers=15.0, reading=1.0)
    (measured, predicted) = 16.5, plan.time.for_job(plan.patches).running

    def last_line(running: float, busy: StageSeconds = computing, costs: str = plan.costs) -> str:
        time = JobSeconds(running=running, busy=busy)
        known = costs == MEASURED_HERE
        (segment,) = plan.segments
        steps = tuple(replace(step, error=0.1 if known else step.error) for step in segment.steps)
        told = replace(plan, costs=costs, segments=(replace(segment, steps=steps),))
        report = Report(told, (), 120, time, 3 << 20, {}, "")
        assert ("calibrate" in report._repr_html_()) == ("calibrate" in str(report))
        return str(report).splitlines()[-1]

    slow = f"running took {measured / predicted:.1f} times as long as predicted"
    assert last_line(measured) == (
        f"{slow}; if that was not for other programs, znni calibrate measures this machine, and "
        f"then predictions are closer"
    )
    again, here = "measure this machine again with znni calibrate --forget", MEASURED_HERE
    assert again in last_line(measured, costs=here)
    reading = last_line(measured, StageSeconds(host_layers=1.0, reading=15.0))
    assert reading == f"{slow}: reading set the pace; look for a faster disk or network"
    time = JobSeconds(running=measured, busy=computing)
    fallen = Report(plan, (plan,), 120, time, 3 << 20, {}, "")
    assert "calibrate" not in str(fallen)  # the first plan says nothing about the others
    compiled = replace(fallen, fallbacks=(), compiling=10.0)
    assert "; kernels were compiled for 10.0 s, once on this machine; " in str(compiled)
    assert "calibrate" not in str(compiled)  # the blocks took as long as predicted
    for near in (predicted * 2.4, predicted * 0.8):
        assert last_line(near).startswith("peak memory")
    assert last_line(predicted * 1.9, costs=here).startswith("peak memory")
    assert again in last_line(predicted * 2.1, costs=here)  # no band, so less is far off


def unplain_first_lines(source: str) -> list[str]:
    """First lines of a module's docstrings that name neither an action nor a value."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    docstrings = (ast.get_docstring(node) or "" for node in nodes)
    unplain = re.compile(r"(Of|What|Whether|How|Where|Who|That|Which)\b")
    return [text.splitlines()[0] for text in docstrings if unplain.match(text)]


@pytest.mark.slow
def test_docstrings_begin_with_what_is_done_or_what_a_value_is() -> None:
    assert unplain_first_lines('"""What a run is asked for."""') == ["What a run is asked for."]
    assert not unplain_first_lines('def f(): "Return what a run is asked for."')
    code = [path for at in (LIBRARY, LIBRARY.parent / "planner") for path in at.rglob("*.py")]
    assert len(code) > 300
    found = {str(path): lines for path in code if (lines := unplain_first_lines(path.read_text()))}
    assert not found
