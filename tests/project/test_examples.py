"""The examples run as they are, by the primitives that there are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from paths import EXAMPLES

pytestmark = pytest.mark.usefixtures("small_case")


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if example.stem == "monai_drop_in":
        pytest.importorskip("torch")
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    if example.stem == "arrays":
        assert len({line.split()[-1] for line in said.splitlines()}) == 1
        assert len(said.splitlines()) >= 2
    elif example.stem == "mask_verify_view":
        assert "outside the mask" in said
        assert "boundaries.h5: agree; " in said
        assert "boundaries.html: " in said
    else:
        assert "(2, 1, 24, 32, 40) to (2, 2, 24, 32, 40)" in said
