"""Writing a network to a file, and its weights to another file beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from znni import __version__
from znni.core.errors import InvalidInput, option
from znni.importing.chain import Chain
from znni.network.layers import Conv, DenseLayer
from znni.network.network import InputScaling
from znni.network.network_file import load_network
from znni.network.weights import KINDS


def weights_beside(out: Path) -> Path:
    """Return the path of the weights that belong to a network file."""
    return out.with_suffix(".safetensors")


def check_writable(out: Path, source: object, *, overwrite: bool) -> None:
    """Check that a network may be written, before any time is spent on it.

    Args:
        out: path of the network file.
        source: the import's source; if it is a file, it is never replaced.
        overwrite: replace an existing network.

    Raises:
        InvalidInput: the network may not be written.
    """
    if out.suffix not in (".yaml", ".yml") or not out.stem.isprintable():
        raise InvalidInput(f"{out}: is no name for a network file; give one that ends in .yaml")
    weights = weights_beside(out)
    for file in filter(Path.exists, (out, weights)):
        if isinstance(source, str | Path) and Path(source).exists() and file.samefile(source):
            raise InvalidInput(f"{file}: is what is imported; give another name for the network")
        if not overwrite:
            raise InvalidInput(
                f"{file}: exists; write elsewhere, or give {option('overwrite', True)}"
            )
    if out.exists():
        load_network(out)  # refuses to replace anything but a network


def write_network(out: Path, chain: Chain, source: str) -> None:
    """Write a network and its weights; each file takes its name once it is complete.

    Args:
        out: path of the network file; the weights go beside it, as ``.safetensors``.
        chain: network and weights to write.
        source: name of the import's source, for a comment.

    Raises:
        InvalidInput: a file cannot be written.
    """
    from safetensors.numpy import save

    arrays = {
        f"{conv.name}.{kind}": getattr(chain.weights[conv.name], kind)
        for conv in chain.network.convolutions
        for kind in KINDS
    }
    _write(weights_beside(out), save(arrays))
    text = "\n".join(_lines(chain, weights_beside(out).name, source))
    _write(out, f"{text}\n".encode())


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.partial")
    try:
        try:
            partial.write_bytes(data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be written: {error.strerror}; write elsewhere"
        ) from None


def _lines(chain: Chain, weights: str, source: str) -> Iterator[str]:
    """Yield the lines of the network file."""
    network = chain.network
    yield f"# {_printable(source)}, imported by znni {__version__}; comments name its layers."
    yield f"name: {_text(network.name)}"
    yield f"in_features: {network.in_features}"
    if network.scaling != InputScaling():
        yield f"input: {{scale: {network.scaling.scale!r}, offset: {network.scaling.offset!r}}}"
    yield f"weights: {_text(weights)}"
    yield "layers:"
    count = Counter[str]()
    for layer, origin in zip(network.dense_layers, chain.origins, strict=True):
        kind, entry = _entry(layer)
        count[kind] += 1
        lead = "  - "
        if layer.name != f"{kind}{count[kind]}":
            yield f"  - name: {_text(layer.name)}"
            lead = "    "
        yield f"{lead}{kind}: {entry}  # {_printable(origin)}"


def _entry(layer: DenseLayer) -> tuple[str, str]:
    """Return the kind of a layer and its fields, as written in the file."""
    if isinstance(layer, Conv):
        kernel = list(layer.kernel)
        fields = f"features: {layer.out_features}, kernel: {kernel}, activation: {layer.activation}"
        return "conv", f"{{{fields}}}"
    return "pool", f"{{window: {list(layer.window)}}}"


def _text(value: str) -> str:
    """Return any string as YAML text."""
    return json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
