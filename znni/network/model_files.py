"""Networks in files of other libraries: what they take and give, and what a window costs.

A file is opened in a process of its own for both. So a broken file ends no run, and the memory of
its library is measured from a fresh start. The answers are kept in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from znni.core.child_process import command_of, environment
from znni.core.errors import InvalidInput
from znni.core.logged import telling_if_long
from znni.core.shapes import Shape5, Vec3
from znni.core.text import duration
from znni.core.user_cache import (
    MOST_BYTES_OF_CODE,
    delete_unused_once,
    load,
    user_cache,
    write_whole,
)
from znni.core.value_cache import ValueCache
from znni.network.models import NUMBERS, RUNTIMES, Execution, Model, Runtime
from znni.network.weights import Float32

log = logging.getLogger("znni")

# The packages that install the libraries.
PACKAGES: dict[Runtime, tuple[str, str]] = {
    "onnxruntime": ("onnxruntime", "pip install onnxruntime"),
    "pytorch": ("torch", "pip install torch"),
}
CHILD = "znni.network.model_process"

# What the process answers to each question.
ANSWERS = ValueCache[dict[str, Any]]("models", 2, dict)
KEYS = {"describe": {"maps", "features", "fixed"}, "measure": {"windows", "shape"}}

# What it does meanwhile.
WORK = {"describe": "opening", "measure": "measuring"}

# The file that marks a compiled form as whole.
WHOLE = "whole"

# The most seconds of a question. Compiling a large network takes some minutes.
MOST_SECONDS = 1200.0

UNCOMPILED = "so it is computed layer by layer"
CHANGED = "has changed since; give the file that was used, or run again"


@dataclass(frozen=True)
class Described:
    """The inputs and outputs of a model's file.

    Attributes:
        maps: the input maps; None if the file leaves them open.
        features: the output maps; None if the file leaves them open.
        fixed: the only extents of its input; None if it leaves them open.
    """

    maps: int | None
    features: int | None
    fixed: Vec3 | None


@dataclass(frozen=True)
class Measured:
    """The measured cost of a window.

    Attributes:
        seconds: the seconds of a window.
        memory: the peak bytes on the host of the library, the file's weights and all arrays.
        gpu_memory: the peak bytes on the GPU, if a GPU computes.
        error: the relative error against float32, of other numbers on a GPU.
    """

    seconds: float
    memory: int
    gpu_memory: int = 0
    error: float = 0.0


def fingerprint(path: Path, given: str = "") -> str:
    """Return the hash of a file's contents, and of the file of weights beside it, if there is one.

    Raises:
        InvalidInput: there is no such file.
    """
    digest = hashlib.sha256()
    if not path.is_file():
        raise InvalidInput(f"{given or path}: no such model file; check the path")
    for part in (path, path.with_name(f"{path.name}.data")):
        if part.is_file():
            with part.open("rb") as opened:
                while block := opened.read(2**20):
                    digest.update(block)
    return digest.hexdigest()


def model_layer(
    name: str, path: Path, features: int | None = None, sha256: str | None = None
) -> Model:
    """Return the layer that a file stands for.

    Args:
        name: name of the layer.
        path: the file: ``.onnx``, or ``.pt2`` of ``torch.export``.
        features: its output maps, if the file does not say so.
        sha256: the hash that its contents must have; None: any.

    Raises:
        InvalidInput: the library is not installed, the file cannot be opened, or takes no single
            input (1, f, z, y, x).
    """
    if path.suffix not in RUNTIMES:
        raise InvalidInput(f"{path}: is no model; give {' or '.join(RUNTIMES)}")
    runtime, content = RUNTIMES[path.suffix], fingerprint(path)
    if sha256 not in (None, content):
        raise InvalidInput(f"{path}: {CHANGED}")
    said = _described(runtime, path, content)
    maps = said.features if features is None else features
    if maps is None or said.maps is None:
        what, key = ("input", "in_features") if said.maps is None else ("output", "features")
        raise InvalidInput(
            f"{path}: leaves the number of its {what} maps ({key}) open; export it with these fixed"
        )
    if said.features not in (None, maps):
        raise InvalidInput(f"{path}: gives {said.features} maps, not {maps}; correct features:")
    whole = str(path.absolute())
    return Model(name, said.maps, maps, content, runtime, whole, said.fixed, given=str(path))


@lru_cache(maxsize=64)
def _described(runtime: Runtime, path: Path, sha256: str) -> Described:
    said = _answer(runtime, path, sha256, ("describe",), str(path))
    fixed = said["fixed"]
    return Described(said["maps"], said["features"], fixed and Vec3(*fixed))


@lru_cache(maxsize=64)
def measured(model: Model, size: Vec3, on: Execution) -> Measured:
    """Return what a window costs on this machine. It is measured once, which may take minutes.

    Raises:
        InvalidInput: the model cannot be computed for such windows, or gives another size. Or the
            library does not compute on the GPU.
    """
    about = {
        "threads": on.threads,
        "gpu": on.gpu,
        "numbers": NUMBERS if on.gpu and not on.compiled else [on.numbers],
        "maps": model.in_features,
        "size": list(size),
        "compiled": str(compiled_folder(model, size, on)) if on.compiled else "",
    }
    asked = ("measure", json.dumps(about))
    said = _answer(model.runtime, Path(model.file), model.sha256, asked, model.given)
    made = tuple(said["shape"])
    wanted = (1, model.features, *size)
    if made != wanted:
        raise InvalidInput(
            f"{model.given}: gives an output of shape {made} for a window of {size}, and {wanted} "
            f"is needed to blend windows; export it with one output of the input's resolution"
        )
    return Measured(**said["windows"][on.numbers])


def compiled_folder(model: Model, size: Vec3, on: Execution) -> Path:
    """Return the folder of a model's compiled form, which need not be there."""
    release = version(PACKAGES[model.runtime][0])
    about = repr((model.sha256, release, tuple(size), on.gpu, on.numbers))
    name = hashlib.sha256(about.encode()).hexdigest()[:32]
    return user_cache() / "compiled-models" / name


def is_compiled(model: Model, size: Vec3, on: Execution) -> bool:
    """Return whether a model was compiled for such windows before."""
    return load(compiled_folder(model, size, on) / WHOLE) is not None


def compile_model(model: Model, size: Vec3, on: Execution) -> None:
    """Compile a model for a GPU, into the user's cache. It takes a minute or more.

    Raises:
        InvalidInput: the library cannot compile it here.
    """
    folder = compiled_folder(model, size, on)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"gpu": on.gpu, "numbers": on.numbers, "maps": model.in_features, "size": list(size)}
    asked = ("compile", json.dumps({**about, "compiled": str(folder)}))
    _asked(model.runtime, Path(model.file), asked, model.given)
    write_whole(folder / WHOLE, b"")
    delete_unused_once(folder.parent, MOST_BYTES_OF_CODE)


@lru_cache(maxsize=1)
def opened(model: Model, threads: int) -> Callable[[Float32], Float32]:
    """Return the function by which a model's library computes (1, f, z, y, x) on the CPU.

    Raises:
        InvalidInput: the file is not there, or has changed.
    """
    from znni.network.model_libraries import open_model

    _check_unchanged(model)
    return open_model(model.runtime, model.file, threads)


@lru_cache(maxsize=1)
def opened_on_gpu(model: Model, size: Vec3, on: Execution) -> Callable[[Any, Any, int], None]:
    """Return the function by which PyTorch computes a window on the current GPU.

    It takes an input (1, f, z, y, x) and an output there, and the address of a stream.

    Raises:
        InvalidInput: the file is not there, or has changed.
    """
    from znni.network.model_libraries import Refused
    from znni.network.model_on_gpu import open_on_gpu

    _check_unchanged(model)
    about = model.file, on.numbers, Shape5(1, model.in_features, *size)
    if on.compiled:
        try:
            return open_on_gpu(*about, str(compiled_folder(model, size, on)))
        except Refused as error:  # it compiled before: something is gone since
            log.warning("%s: %s; %s", model.given, error, UNCOMPILED)
    return open_on_gpu(*about, "")


def _check_unchanged(model: Model) -> None:
    if fingerprint(Path(model.file), model.given) != model.sha256:
        raise InvalidInput(f"{model.given}: {CHANGED}")


def _answer(
    runtime: Runtime, path: Path, sha256: str, asked: Sequence[str], given: str
) -> dict[str, Any]:
    """Return what the process answers, from the cache if it has answered before.

    Raises:
        InvalidInput: the library is not installed, or refuses the file.
    """
    package, install = PACKAGES[runtime]
    try:
        release = version(package)
    except PackageNotFoundError:
        raise InvalidInput(
            f"{given}: needs {package}, which is not installed: {install}; or import it with znni "
            f"import, if all of its layers are known"
        ) from None
    about = (sha256, package, release, *asked)
    known = ANSWERS.load(about)
    if known and known.keys() == KEYS[asked[0]]:
        return known
    with telling_if_long(f"{WORK[asked[0]]} {given}, once"):
        answer = _asked(runtime, path, asked, given)
    ANSWERS.store(about, answer)
    return answer


def _asked(runtime: Runtime, path: Path, asked: Sequence[str], given: str) -> dict[str, Any]:
    """Return what the process answers.

    Raises:
        InvalidInput: the library refuses the file.
    """
    ended = _asked_of_child([runtime, str(path), *asked])
    if ended.returncode:
        raise InvalidInput(f"{given}: {_problem(ended, PACKAGES[runtime][0])}")
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _asked_of_child(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Return how the process ended. After ``MOST_SECONDS`` it is killed."""
    command = command_of(CHILD, *arguments)
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment(),
            timeout=MOST_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"it gave no answer within {duration(MOST_SECONDS)}"
        return subprocess.CompletedProcess(command, 1, "", said)


def _problem(ended: subprocess.CompletedProcess[str], package: str) -> str:
    said = [line for line in ended.stderr.strip().splitlines() if line.strip()]
    if ended.returncode == 3 and said:
        return said[-1]
    if ended.returncode < 0:
        return (
            f"{package} was ended by signal {-ended.returncode}: it takes too much memory, or "
            f"the file is broken; give a smaller window"
        )
    return f"{package} failed: {said[-1] if said else 'it says nothing'}"
