"""``znni calibrate``: its measurements, and the plans made from them."""

from __future__ import annotations

import re
import signal

import pytest
from calibration_cases import CATALOGUE, QUICK_HANDLING, slow
from command_line import refused, succeeds, znni
from fakes import Fake

from planner.cost_model import NOT_MEASURED
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.effort import QUICK
from znni.calibration.measure import Workbench
from znni.calibration.record import record
from znni.calibration.regression import NOISE, PRIOR
from znni.calibration.shapes import Call
from znni.cli.signals import Stopped
from znni.machine.timing import Timing
from znni.plans.primitive import Primitive, convolved

pytestmark = pytest.mark.usefixtures("database", "fakes", "twice_as_slow")

CALIBRATE = ("calibrate", "--quick", "--threads", 1)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes to measure, and a machine that handles voxels at once."""
    for module in ("inference.planning", "calibration.campaign"):
        monkeypatch.setattr(f"znni.{module}.catalogue", lambda _machine: CATALOGUE)
    monkeypatch.setattr("znni.calibration.io_rates.measure_handling", lambda _: QUICK_HANDLING)


@pytest.mark.slow
@pytest.mark.usefixtures("small_case")
def test_calibrating_and_planning_from_it() -> None:
    show = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    infer = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5", "--overwrite")
    assert f"predicted ({NOT_MEASURED})\n" in succeeds(*show)
    assert NOT_MEASURED in succeeds(*infer)
    assert "run znni calibrate" in refused(*show, "--costs", "measured")
    by_primitive, handling, total = succeeds(*CALIBRATE).split("\n\n")
    assert re.fullmatch(r"calibrated in .+ (s|min|h), from the start of the command\n", total)
    header, *rows = by_primitive.splitlines()
    assert handling.splitlines()[0].split() == ["memory", "touched", "first", "1,000", "MB/s"]
    assert header.split()[:3] == ["primitive", "measurements", "error"]
    assert [row.split()[:2] for row in rows] == [[name, f"{QUICK.calls}"] for name in CATALOGUE]
    assert all(float(row.split()[2].rstrip("%")) <= 5 for row in rows)
    for options in ((), ("--costs", "measured")):
        table = succeeds(*show, *options)
        assert "predicted (measured on this machine on 20" in table
        errors = re.findall(r" (\d+)%$", table, re.M)
        assert errors
        assert all(0 < int(error) <= 100 * (PRIOR + NOISE**2) ** 0.5 for error in errors)
        report = succeeds(*infer, *options)
        assert re.search(r"nine times of ten.* \(measured on this machine on 20", report)
    assert "predicted (a model of flops and bytes)\n" in succeeds(*show, "--costs", "built-in")
    assert "--costs is 'guessed'; choose one of" in refused(*show, "--costs", "guessed")


@pytest.mark.slow
def test_calibrating_some_primitives_anew(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    succeeds(*CALIBRATE)
    here = Conditions.of(CATALOGUE["conv"].device)
    before = len(database.measured(here))
    record(slow(Fake("conv", convolved), 9.0), database)
    record(slow(Fake("pool", convolved), 9.0), database)
    assert len(database.measured(here)) == before + 24
    twice_as_slow.clear()
    row, _, _ = succeeds(*CALIBRATE, "--only", "conv", "--forget").splitlines()[1:]
    assert row.split()[:2] == ["conv", f"{QUICK.calls}"]
    assert {name for name, _ in twice_as_slow} == {"conv"}
    assert len(database.measured(here)) == before + 12
    assert refused(*CALIBRATE, "--only", "cnov") == (
        "this machine has no primitive 'cnov'; choose from conv, fragments, pool"
    )


@pytest.mark.slow
def test_a_calibration_that_is_stopped_keeps_what_it_measured(
    twice_as_slow: list[tuple[str, Call]],
    database: CostDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend = Workbench.measure

    def stopped(workbench: Workbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        if len(twice_as_slow) == 7:
            raise Stopped(signal.SIGINT)
        return pretend(workbench, primitive, call, repeats)

    monkeypatch.setattr(Workbench, "measure", stopped)
    outcome = znni(*CALIBRATE)
    assert outcome.code == 130
    assert f"stopped by SIGINT; 7 of {3 * QUICK.calls} measurements are kept in" in outcome.err
    assert len(database.measured(Conditions.of(CATALOGUE["conv"].device))) == 7


@pytest.mark.slow
def test_a_file_that_cannot_be_written_stops_a_calibration(
    twice_as_slow: list[tuple[str, Call]], database: CostDatabase
) -> None:
    database.path.write_text("damaged" * 1000)
    assert "measured costs cannot be written" in refused(*CALIBRATE)
    assert len(twice_as_slow) == 1


def test_where_nothing_can_be_measured_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.calibration.campaign.designed_calls", lambda *_: [])
    assert "no call of conv is short enough" in refused(*CALIBRATE, "--only", "conv")


@pytest.mark.usefixtures("small_case")
def test_the_layers_of_one_network_are_measured(twice_as_slow: list[tuple[str, Call]]) -> None:
    of_network = ("calibrate", "--net", "tiny.yaml", "--volume", "volume.h5", "--ram", "1GiB")
    said = succeeds(*of_network, "--threads", 1)
    assert re.match(rf"{len(twice_as_slow)} measurements in \d+ rounds: no other plan", said)
    assert "all layers keep their primitives" in said
    assert "calibrated in" in said
    assert "0 measurements in 1 round:" in succeeds(*of_network, "--device", "cpu")
    assert "the time is up" in succeeds(*of_network, "--border", "same", "--seconds", 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--volume", "9,9,9"), "--volume 9,9,9 is for a network; give --net"),
        (("--seconds", 5), "--seconds 5.0 is for a network"),
        (("--gpu-memory", "1GiB"), "--gpu-memory 1GiB is for a network"),
        (("--net", "tiny.yaml", "--quick"), "--quick is for all primitives; leave out"),
        (("--net", "tiny.yaml", "--forget"), "--forget is for all primitives"),
    ],
)
def test_options_of_machine_and_network_do_not_mix(options: tuple[str, ...], said: str) -> None:
    assert said in refused("calibrate", *options)
