"""A case that is killed in any step goes on to the same labels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "killed_cases.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["infer", "predict"])
def test_killed_cases_give_the_same_labels(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("nibabel", reason="it is not installed (znni[nifti])")
    run = subprocess.run(
        [sys.executable, SCRIPT, "--folder", tmp_path, "--kills", "4", "--kind", kind],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.split(maxsplit=1)[1])
    assert found["killed"] >= 4
    assert not found["wrong"]
