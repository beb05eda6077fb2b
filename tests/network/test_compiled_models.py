"""Models that PyTorch compiles: their code is kept in a folder, and gives the same.

A GPU's models are compiled by the same functions, here for the CPU.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shutil import which
from threading import Thread
from typing import Any

import pytest
from import_cases import torch_or_skip

from znni.core.child_process import command_of_program, environment
from znni.network.model_libraries import Refused
from znni.network.model_on_gpu import CANNOT_COMPILE, opened

torch = torch_or_skip()
from norm_over_maps import NormOverMaps  # noqa: E402 - it needs PyTorch

SHAPE = (1, 2, 8, 8, 12)
MANY = 9  # models in one process: more than PyTorch compiles forms of one function
COMPILE = """
import torch
from znni.network.model_on_gpu import opened
opened({file!r}, "float32", torch.zeros({shape}), {folder!r}, processes=0)
"""


@pytest.fixture
def module() -> Any:
    torch.manual_seed(1)
    return NormOverMaps().eval()


@pytest.fixture
def file(module: Any, tmp_path: Path) -> str:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(*SHAPE),)), path)
    return str(path)


@pytest.fixture
def counts() -> Any:
    """How often PyTorch has traced, compiled and found a graph."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    return counters


@pytest.mark.slow
@pytest.mark.skipif(not which("g++"), reason="PyTorch compiles for the CPU with g++")
def test_a_later_process_takes_a_compiled_model_from_its_folder(
    module: Any, file: str, counts: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "compiled")
    program = COMPILE.format(file=file, shape=SHAPE, folder=folder)
    subprocess.run(command_of_program(program), check=True, env=environment())
    compute = opened(file, "float32", torch.zeros(*SHAPE), folder)
    assert (counts["inductor"]["fxgraph_cache_hit"], counts["stats"]["unique_graphs"]) == (1, 1)
    assert not counts["inductor"]["fxgraph_cache_miss"]
    assert folder not in " ".join(os.environ.values())

    x = torch.randn(*SHAPE)
    made: list[Any] = []
    for given in (x, x.transpose(3, 4).contiguous().transpose(3, 4)):
        thread = Thread(target=lambda given=given: made.append(compute(given)))
        thread.start()
        thread.join()
    with torch.inference_mode():
        wanted = module(x)
    for found in made:
        assert (found - wanted).norm() <= 1e-6 * wanted.norm()
    assert len(made) == 2
    assert counts["stats"]["unique_graphs"] == 1  # neither a thread nor gaps compile again
    for _ in range(MANY):
        opened(file, "float32", x, folder)
    assert counts["inductor"]["fxgraph_cache_hit"] == 1 + MANY


@pytest.mark.slow
@pytest.mark.usefixtures("counts")
def test_a_missing_compiler_is_said(file: str, tmp_path: Path) -> None:
    from torch._inductor import config

    missing = config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with missing, pytest.raises(Refused, match=rf"PyTorch \S+ {CANNOT_COMPILE}: .*C\+\+ compiler"):
        opened(file, "float32", torch.zeros(*SHAPE), str(tmp_path / "compiled"))
