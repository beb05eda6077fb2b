"""What befalls runs on a GPU: they say what, and the same command goes on with what is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import read_main, refused, succeeds, write_volume, znni
from numpy.typing import NDArray
from paths import NETWORKS
from small_disk import small_disk

from znni.core.errors import RunFailed
from znni.core.shapes import Box
from znni.engine.backends.cuda.part_runner import DevicePartRunner, Finished, Launched
from znni.machine.cuda import cupy
from znni.machine.device_arena import allocate
from znni.volumes.formats.hdf5.chunk_writer import ChunkWriter

pytestmark = pytest.mark.gpu

NET = NETWORKS / "boundaries.yaml"
SIZE = (300, 200, 250)
ZNNI = (sys.executable, "-c", "from znni.cli import main; main()")
RUN = ("infer", "volume.h5", "--net", str(NET), "--device", "gpu", "--dtype", "uint8")
PLANNED = (*RUN, "--plan", "plan.json", "--gpu-memory", "1GiB", "--ram", "24GiB", "--out")
FINISHED = 3  # blocks, when a stage fails


@pytest.fixture(autouse=True)
def whole(own_folder: Path) -> Path:
    """The output of a run that was left alone, of some tens of patches, by a plan that is noted."""
    write_volume(np.random.default_rng(0).integers(0, 255, SIZE, np.uint8))
    plan = ("plan", "--net", NET, "--volume", "volume.h5", "--device", "gpu", "--out", "plan.json")
    succeeds(*plan, "--gpu-memory", "256MiB", "--costs", "built-in")
    succeeds(*PLANNED, "whole.h5")
    return own_folder / "whole.h5"


def goes_on_to_the_same(out: str, whole: Path) -> None:
    """The same command ends with the same numbers."""
    assert "were finished before" in succeeds(*PLANNED, out)
    np.testing.assert_array_equal(read_main(out), read_main(whole))


@pytest.mark.parametrize("stage", ["launch", "finish"])
def test_a_stage_that_fails(stage: str, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that had passed it are written, it is told as itself, and the same command goes on."""
    work, calls = getattr(DevicePartRunner, stage), list[int]()

    def failing(layers: DevicePartRunner, *given: Any, **options: Any) -> Launched | Finished:
        calls.append(1)
        if len(calls) > FINISHED:
            raise RunFailed("the device is lost; run again")
        made: Launched | Finished = work(layers, *given, **options)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(DevicePartRunner, stage, failing)
        said = refused(*PLANNED, "out.h5", code=4)
    assert said.startswith("the device is lost; run again; out.h5 was not made")
    assert f"out.h5.partial holds {FINISHED} finished blocks" in said
    goes_on_to_the_same("out.h5", whole)


def test_a_run_that_is_killed(whole: Path) -> None:
    ledger = Path("out.h5.partial.ledger")
    with subprocess.Popen([*ZNNI, *PLANNED, "out.h5"]) as run:
        while run.poll() is None and (not ledger.exists() or b'"block"' not in ledger.read_bytes()):
            time.sleep(0.001)
        run.kill()
    assert run.returncode == -9
    goes_on_to_the_same("out.h5", whole)


def test_a_disk_that_others_fill(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, calls = DevicePartRunner.finish, list[int]()
    with small_disk(Path.cwd(), str(2 * whole.stat().st_size)) as disk:
        filler = disk / "filler"

        def filling(layers: DevicePartRunner, *given: Any) -> Finished:
            calls.append(1)
            if len(calls) > FINISHED:
                fill(filler)
            return finish(layers, *given)

        with monkeypatch.context() as patch:
            patch.setattr(DevicePartRunner, "finish", filling)
            said = refused(*PLANNED, "disk/out.h5", code=4)
        assert "disk/out.h5.partial: cannot be written: No space left on device" in said
        assert "the same command goes on from there" in said
        filler.unlink()
        goes_on_to_the_same("disk/out.h5", whole)


def fill(file: Path) -> None:
    """Write to a disk until nothing fits."""
    with suppress(OSError), file.open("ab", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def test_blocks_that_find_no_room(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, blocks = ChunkWriter.write, list[Box]()

    def full(writer: ChunkWriter, box: Box, values: NDArray[Any]) -> None:
        if len(blocks) == FINISHED:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        blocks.append(box)
        write(writer, box, values)

    with monkeypatch.context() as patch:
        patch.setattr(ChunkWriter, "write", full)
        said = refused(*PLANNED, "out.h5", code=4)
    assert "out.h5.partial: cannot be written: No space left on device; make room" in said
    assert f"out.h5.partial holds {FINISHED} finished blocks" in said
    goes_on_to_the_same("out.h5", whole)


def hog(left: int) -> Any:
    """All memory of the GPU but so many bytes."""
    cupy().get_default_memory_pool().free_all_blocks()
    free, _ = cupy().cuda.Device().mem_info
    return allocate(free - left)


@pytest.mark.whole_gpu
def test_memory_of_the_gpu_taken_by_others(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on with a smaller plan; where there is none it ends, and leaves nothing."""
    plan = ("plan", "--net", NET, "--volume", "volume.h5", "--device", "gpu", "--out", "large.json")
    succeeds(*plan, "--gpu-memory", "2GiB", "--costs", "built-in")
    run = (*RUN, "--plan", "large.json", "--gpu-memory", "2GiB", "--ram", "24GiB", "--out")
    taken = hog(left=512 * 2**20)
    outcome = znni(*run, "out.h5")
    assert outcome.code == 0, outcome.err
    assert "memory of the GPU ran out under a plan of" in caplog.text
    found, expected = read_main("out.h5").astype(int), read_main(whole).astype(int)
    assert abs(found - expected).max() <= 1
    del taken
    taken = hog(left=16 * 2**20)
    outcome = znni(*run, "none.h5")
    assert outcome.code in (3, 4), outcome.err
    assert "GPU" in outcome.err
    assert "none.h5 was not made" in outcome.err
    assert not Path("none.h5").exists()
    del taken
