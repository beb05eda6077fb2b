"""Networks as YAML files, which are checked and turned into a ``Network``."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path

from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput
from znni.core.loading import is_own_process
from znni.core.shipped import NETWORKS
from znni.core.user_cache import state_of_source
from znni.core.value_cache import ValueCache
from znni.core.version import PACKAGE
from znni.network.geometry import with_window as windowed
from znni.network.models import is_model_file
from znni.network.network import Network
from znni.network.window import Window

# Files that ``znni import`` turns into network files.
IMPORTED = (".pt", ".pth", ".ckpt", ".pytorch", ".safetensors", ".zip")

# Networks that commands read before.
READ = ValueCache("networks", 1, Network)


def load_network(path: str | Path) -> Network:
    """Read a network file.

    Args:
        path: the path of a YAML file. It has ``name``, ``in_features``, ``layers`` and, optionally,
            ``weights`` (a file beside it), ``input`` (scale and offset), ``labels``, ``window``,
            ``about`` and ``expects``. Or it has ``model`` instead of layers, a file of ONNX or
            PyTorch (``.pt2``), which that library computes in windows. The path may also be that
            of such a file itself, or the name of a network that comes with znni.

    Raises:
        InvalidInput: there is no such file, or it is not a network. The message names the line.
            Or the file is of another library, and must be imported.
    """
    if not isinstance(path, str | PathLike):
        raise InvalidInput(
            f"the network is a {type(path).__name__}; give the path of a network file, or what "
            f"znni.load_network returns (znni.import_network makes a network file of a PyTorch "
            f"module)"
        )
    is_folder = Path(path).is_dir() and NETWORKS.file(str(path)) is None
    if is_folder or (Path(path).suffix in IMPORTED and Path(path).exists()):
        what = "is a folder, and no network file; one of another library " if is_folder else ""
        raise InvalidInput(
            f"{path}: {what}is to be imported first; run znni import {path}, and give the network "
            f"file that it writes"
        )
    if is_model_file(Path(path)):
        if not Path(path).exists():
            raise InvalidInput(f"{path}: no such model file; check the path")
        text = json.dumps({"name": Path(path).stem, "model": Path(path).name})
        return network_from_text(text, path)
    return _cached_or_read(NETWORKS.found(Path(path)))


def shipped_networks() -> dict[str, Network]:
    """Return the networks that come with znni, by the names that ``load_network`` takes.

    Those without ``weights`` are for benchmarks: they need random weights.
    """
    return {name: load_network(name) for name in NETWORKS.names}


@checks_types
def with_window(network: Network | str | Path, window: Window) -> Network:
    """Return a network that is computed in windows.

    Args:
        network: a network, or its file or name, as for ``load_network``.
        window: the windows.

    Raises:
        InvalidInput: there is no such network, or it cannot be computed in windows of this size.

    Example:
        >>> znni.with_window("net.yaml", znni.Window((64, 128, 128), overlap=0.5))
    """
    return windowed(network if isinstance(network, Network) else load_network(network), window)


def network_from_text(text: str, name: str | Path) -> Network:
    """Return the network of a network file's text.

    Args:
        text: the text: YAML, or JSON as ``network_text`` returns it.
        name: the origin of the text, for messages.

    Raises:
        InvalidInput: the text is not a network. The message names the line.
    """
    return _read(Path(name), text)


def _cached_or_read(path: Path) -> Network:
    """Return the network in a file. A command takes it from the cache, if it is there."""
    key = _key(path) if is_own_process() else None
    if key and (known := READ.load(key)):
        return known
    network = _read(path)
    # What is known of a model depends on its file. The network file may be another by now.
    if key and not network.models and key == _key(path):
        READ.store(key, network)
    return network


def _key(path: Path) -> object:
    """Return all on which a network file's network depends; None if the file cannot be read."""
    try:
        return str(path), path.read_bytes(), state_of_source(PACKAGE)
    except OSError:
        return None


def _read(path: Path, text: str | None = None) -> Network:
    """Return the network in a file after a check, for which more modules are loaded."""
    from znni.core.yaml_file import YamlFile
    from znni.network.network_entries import network_of

    return network_of(YamlFile(path, "network", text))
