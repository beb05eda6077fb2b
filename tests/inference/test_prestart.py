"""What a command begins before it loads the modules that plan and run."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from command_line import INFER, attributes, refused, succeeds
from tiny_network import parts

from znni.core.errors import InvalidInput
from znni.inference import prestart
from znni.inference.prestart import weights_ahead
from znni.network import weights as weights_module

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which weights are begun."""
    found: list[Any] = []

    def noted(network: Any, *arguments: Any) -> Any:
        found.append(arguments)
        return weights_ahead(network, *arguments)

    monkeypatch.setattr(prestart, "weights_ahead", noted)
    return found


def test_weights_are_read_and_hashed_beside_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    network, weights = parts()
    read, may_read = weights_module.weights_for, Event()

    def later(*arguments: Any) -> Any:
        assert may_read.wait(10)
        return read(*arguments)

    monkeypatch.setattr(weights_module, "weights_for", later)
    found = weights_ahead(network, None, None)
    assert not found.done()
    may_read.set()
    assert found.result().sha256 == weights.sha256
    assert "sha256" in vars(found.result())  # known by now


def test_errors_are_those_of_reading_them_later() -> None:
    network, _ = parts()
    with pytest.raises(InvalidInput, match="no such weights file"):
        weights_ahead(network, "missing.npz", None).result()


def test_a_run_begins_its_weights_once(begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.inference.session.weights_for", lambda *_: pytest.fail("read again"))
    succeeds(*INFER)
    assert attributes()["weights_sha256"] == parts()[1].sha256
    succeeds(*INFER, "--overwrite", "--random-weights", 3)
    assert attributes()["weights"] == "random, seed 3"
    assert begun == [(None, None), (None, 3)]
    assert "no such weights file" in refused(*INFER, "--overwrite", "--weights", "missing.npz")
    assert begun[2:] == [(Path("missing.npz"), None)]


def test_runs_of_several_volumes_and_dry_runs_read_weights_when_they_need_them(
    begun: list[Any],
) -> None:
    shutil.copy("volume.h5", "other.h5")
    succeeds("infer", "volume.h5", "other.h5", "--net", "tiny.yaml", "--out", "both/")
    succeeds("infer", "volume.h5", "--net", "tiny.yaml", "--out", "one/")
    succeeds(*INFER, "--dry-run")
    assert begun == []
