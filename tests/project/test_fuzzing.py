"""A share of the inputs of ``fuzzing.py``, the same ones every time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzz_kinds import KINDS
from fuzz_mutations import HOSTILE_PICKLES
from fuzzing import CANARY, available, fuzzed, watch_for_code

# Inputs of each kind; python tests/support/fuzzing.py runs 10,000 in all.
INPUTS = 8
IMPORTS = 25


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    watch_for_code()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_inputs_are_taken_for_what_they_are_or_refused(name: str, own_folder: Path) -> None:
    if name not in available():
        pytest.skip(f"needs {', '.join(KINDS[name].needs)}")
    count = IMPORTS if KINDS[name].command[0] == "import" else INPUTS
    for found in fuzzed(name, range(count), own_folder):
        assert not found.wrong, found


@pytest.mark.usefixtures("own_folder")
def test_programs_in_pickles_are_not_run() -> None:
    pytest.importorskip("torch")
    kind = KINDS["state dict (PyTorch)"]
    kind.make()
    for program in HOSTILE_PICKLES:
        Path("net.pt").write_bytes(program)
        outcome = kind.run()
        assert outcome.code == 2, outcome
        assert not CANARY.exists()


@pytest.mark.usefixtures("own_folder")
def test_mutations_change_files_and_are_the_same_every_time() -> None:
    kind = KINDS["network (YAML)"]
    kind.make()
    good = Path("tiny.yaml").read_bytes()
    made = [[kind.mutate(Random(n), good) for n in range(50)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 40
