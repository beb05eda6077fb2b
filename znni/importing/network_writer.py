"""Writing a network to a file, and its weights to another file beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Blend, WindowRules
from znni.core.version import __version__
from znni.importing.folding import Folded
from znni.network.case_entry import case_entry
from znni.network.input_scaling import InputScaling, Within
from znni.network.layers import Activation
from znni.network.network_as_text import OUTPUTS, entry_of, input_entry, kind_of, window_entry
from znni.network.network_file import load_network
from znni.network.node import INPUT

# Text that needs no quotes.
KEYWORDS = (
    *get_args(Activation), *get_args(Blend), *get_args(WindowRules), *get_args(Within),
    "max", "average", "nearest", "trilinear", "zscore", "convolution",
)  # fmt: skip


def weights_beside(out: Path) -> Path:
    """Return the path of the weights that belong to a network file."""
    return out.with_suffix(".safetensors")


def check_writable(out: Path, source: object, *, overwrite: bool) -> None:
    """Check that a network may be written, before any time is spent on it.

    Args:
        out: path of the network file.
        source: the import's source; if it is a file, it is never replaced.
        overwrite: replace an existing network.
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


def write_network(out: Path, folded: Folded, source: str) -> None:
    """Write a network and its weights; each file takes its name once it is complete.

    Args:
        out: path of the network file; the weights go beside it, as ``.safetensors``.
        folded: network and weights to write.
        source: name of the import's source, for a comment.
    """
    from safetensors.numpy import save

    arrays = {
        f"{name}.{kind}": array
        for name, weights in folded.weights.layers.items()
        for kind, array in weights.arrays.items()
    }
    _write(weights_beside(out), save(arrays))
    text = "\n".join(_lines(folded, weights_beside(out).name, source))
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
        ) from error


def _lines(folded: Folded, weights: str, source: str) -> Iterator[str]:
    """Yield the lines of the network file."""
    network = folded.network
    yield f"# {_printable(source)}, imported by znni {__version__}; comments name its layers."
    yield f"name: {_text(network.name)}"
    for key, text in (("about", network.about), ("expects", network.expects)):
        if text:
            yield f"{key}: {_text(text)}"
    yield f"in_features: {network.in_features}"
    if network.scaling != InputScaling():
        yield f"input: {_flow(input_entry(network.scaling))}"
    yield f"weights: {_text(weights)}"
    if network.labels:
        yield f"labels: {_flow({_text(name): label for name, label in network.labels})}"
    if network.has_regions:
        yield "regions: true"
    if network.case:
        yield f"case: {_flow(case_entry(network.case))}"
    if network.spacing:
        yield f"spacing: {network.spacing.text}"
    if network.window:
        yield f"window: {_flow(window_entry(network.window))}"
    elif network.window_layer:
        yield "# It depends on whole windows. Give the extents that it was trained on (z, y, x):"
        yield "# window: {size: [64, 128, 128], overlap: 0.5, blend: gaussian}"
    nodes, outputs = list(network.nodes), [network.output]
    if network.output == OUTPUTS:
        outputs = list(nodes.pop().inputs)
    yield "layers:"
    count, before = Counter[str](), INPUT
    for node, origin in zip(nodes, folded.origins, strict=False):
        kind = kind_of(node.layer)
        count[kind] += 1
        keys = []
        if node.name != f"{kind}{count[kind]}":
            keys.append(f"name: {_text(node.name)}")
        if node.inputs != (before,):
            keys.append(f"from: {_flow(node.inputs)}")
        keys.append(f"{kind}: {_flow(entry_of(node.layer))}  # {_printable(origin)}")
        for index, key in enumerate(keys):
            yield f"{'    ' if index else '  - '}{key}"
        before = node.name
    if outputs != [before]:
        yield f"outputs: {_flow(outputs)}"


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return value if value in KEYWORDS else _text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _text(value: str) -> str:
    """Return any string as YAML text."""
    return json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
