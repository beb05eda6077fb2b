"""Weights: the same from every format, and refused if they do not fit the network."""

from __future__ import annotations

import gc
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from znni.core.errors import InvalidInput
from znni.core.mapped_file import FORGET
from znni.core.shapes import Vec3
from znni.machine.arrays import resident_memory
from znni.network.layers import Add, Affine, Conv, ConvTranspose, Pool
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import load_network
from znni.network.node import INPUT, Node
from znni.network.weights import (
    ConvWeights,
    Weights,
    checked_weights,
    conv_weights,
    load_weights,
    random_weights,
    weights_for,
)
from znni.network.weights_file import is_mapped, read_arrays

NETWORK = Network.chain(
    "small",
    2,
    (
        Conv("first", 2, 3, Vec3(1, 2, 3), "relu"),
        Pool("pool", Vec3(2, 2, 2)),
        Conv("last", 3, 1, Vec3(2, 2, 2), "sigmoid"),
    ),
)
Arrays = dict[str, NDArray[Any]]


def save_npz(arrays: Arrays, path: Path) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def save_hdf5(arrays: Arrays, path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


SAVERS: dict[str, Callable[[Arrays, Path], None]] = {
    ".safetensors": save_file,
    ".npz": save_npz,
    ".h5": save_hdf5,
    ".hdf5": save_hdf5,
}


def good(dtype: str = "float32") -> Arrays:
    weights = random_weights(NETWORK, seed=3)
    arrays: Arrays = {}
    for conv in NETWORK.convolutions:
        arrays[f"{conv.name}.weight"] = weights[conv.name].weight.astype(dtype)
        arrays[f"{conv.name}.bias"] = weights[conv.name].bias.astype(dtype)
    return arrays


def refusal(arrays: Arrays, folder: Path) -> str:
    save_npz(arrays, folder / "w.npz")
    with pytest.raises(InvalidInput) as refused:
        load_weights(folder / "w.npz", NETWORK)
    return str(refused.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("suffix", SAVERS)
def test_every_format_gives_the_same(suffix: str, dtype: str, tmp_path: Path) -> None:
    if suffix == ".safetensors" and dtype == ">f4":
        pytest.skip("safetensors files are little-endian")
    path = tmp_path / f"w{suffix}"
    SAVERS[suffix](good(dtype), path)
    weights = load_weights(path, NETWORK)
    assert weights.source == str(path)
    assert set(weights.layers) == {"first", "last"}
    for name, expected in good(dtype).items():
        layer, _, kind = name.rpartition(".")
        found = getattr(weights[layer], kind)
        assert found.dtype == np.float32
        assert found.dtype.isnative
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected.astype(np.float32))
    if dtype != "float16":
        assert weights.sha256 == random_weights(NETWORK, seed=3).sha256
    assert weights.nbytes == 4 * NETWORK.parameters


def test_the_hash_tells_weights_apart() -> None:
    same = random_weights(NETWORK, seed=3)
    assert same.sha256 == random_weights(NETWORK, seed=3).sha256
    assert same.sha256 != random_weights(NETWORK, seed=4).sha256


def test_the_hash_is_that_of_the_values_in_order_and_takes_no_memory() -> None:
    weight = np.random.default_rng(1).standard_normal((300, 200, 3, 3, 3), np.float32)
    given = Weights({"first": ConvWeights(weight, np.zeros(300, np.float32))}, "mine")
    tracemalloc.start()
    try:
        found = given.sha256
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < weight.nbytes / 100
    turned = replace(given["first"], weight=np.asfortranarray(weight))
    assert Weights({"first": turned}, "mine").sha256 == found


def test_missing_and_unknown_arrays(tmp_path: Path) -> None:
    arrays = good()
    del arrays["last.bias"]
    message = refusal(arrays, tmp_path)
    assert "lacks 'last.bias'" in message
    assert "first.weight" in message
    message = refusal(good() | {"extra.weight": np.zeros(1)}, tmp_path)
    assert "'extra.weight'" in message
    assert "another network" in message


def test_wrong_shape(tmp_path: Path) -> None:
    turned = good()["first.weight"].transpose(1, 0, 2, 3, 4)
    message = refusal(good() | {"first.weight": turned}, tmp_path)
    assert "layer first: weight has shape (2, 3, 1, 2, 3)" in message
    assert "needs (3, 2, 1, 2, 3): correct the layer" in message


@pytest.mark.parametrize("dtype", ["int32", "complex64", "bool", "S4"])
def test_wrong_type(dtype: str, tmp_path: Path) -> None:
    message = refusal(good() | {"last.bias": np.ones(1).astype(dtype)}, tmp_path)
    assert "layer last: bias is" in message
    assert "float32" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_not_finite(value: float, tmp_path: Path) -> None:
    bad = good("float64")["first.weight"]
    bad.flat[:2] = value
    message = refusal(good() | {"first.weight": bad}, tmp_path)
    assert "layer first: weight has 2 values not finite in float32" in message


@pytest.mark.parametrize("suffix", SAVERS)
def test_damaged_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    SAVERS[suffix](good(), path)
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense" * 9, whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInput) as refused:
            load_weights(path, NETWORK)
        assert str(refused.value).startswith(f"{path}: cannot be read as {suffix} weights: ")
        assert str(refused.value).endswith("; is the file whole? copy or export it again")


def test_not_weights(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such weights file"):
        load_weights(tmp_path / "none.npz", NETWORK)
    with pytest.raises(InvalidInput, match="no such weights file"):
        load_weights(tmp_path, NETWORK)
    (tmp_path / "w.pt").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"'\.pt'; use \.safetensors"):
        load_weights(tmp_path / "w.pt", NETWORK)
    np.savez(tmp_path / "w.npz", allow_pickle=True, **{"first.weight": np.array([None])})
    with pytest.raises(InvalidInput, match=r"cannot be read as \.npz"):
        load_weights(tmp_path / "w.npz", NETWORK)


def test_an_array_saved_by_itself(tmp_path: Path) -> None:
    with (tmp_path / "w.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InvalidInput, match=r"cannot be read as \.npz"):
        load_weights(tmp_path / "w.npz", NETWORK)


def test_a_name_in_hdf5_that_is_no_text(tmp_path: Path) -> None:
    save_hdf5(good(), tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "r+") as file:
        file[b"\xff\xfe"] = np.zeros(3)
    with pytest.raises(InvalidInput, match=r"which network .* has no layer for"):
        load_weights(tmp_path / "w.h5", NETWORK)


def test_a_group_in_hdf5_is_named(tmp_path: Path) -> None:
    arrays = {name.replace(".", "/"): values for name, values in good().items()}
    save_hdf5(arrays, tmp_path / "w.h5")
    with pytest.raises(InvalidInput, match=r"lacks 'first\.bias'.*first/bias"):
        load_weights(tmp_path / "w.h5", NETWORK)


def test_which_weights(tmp_path: Path) -> None:
    said = r"weights='FILE' \(--weights FILE\) or.*\(--random-weights 0\)"
    with pytest.raises(InvalidInput, match=said):
        weights_for(NETWORK, None, None)
    path = tmp_path / "w.npz"
    save_npz(good(), path)
    assert weights_for(NETWORK, path, None).source == str(path)
    assert weights_for(NETWORK, None, 5).source == "random, seed 5"
    with pytest.raises(InvalidInput, match="both"):
        weights_for(NETWORK, path, 5)


def test_weights_that_a_program_made() -> None:
    made = random_weights(NETWORK, 5)
    kept = checked_weights(made, NETWORK)
    assert (kept.source, kept.sha256) == (made.source, made.sha256)
    for name, layer in made.layers.items():
        assert kept[name].weight is layer.weight  # not copied without need
    other = {
        name: ConvWeights(np.asfortranarray(layer.weight, ">f8"), np.repeat(layer.bias, 2)[::2])
        for name, layer in made.layers.items()
    }
    converted = weights_for(NETWORK, Weights(other, "mine"), None)
    assert converted.sha256 == made.sha256
    for layer in converted.layers.values():
        for array in (layer.weight, layer.bias):
            assert array.dtype == np.float32
            assert array.dtype.isnative
            assert array.flags.c_contiguous
    with pytest.raises(InvalidInput, match="both random weights and the weights mine"):
        weights_for(NETWORK, Weights(other, "mine"), 5)


GOOD = random_weights(NETWORK, 5)["first"]
FAULTS: dict[str, tuple[Any, str]] = {
    "fewer maps": (
        ConvWeights(GOOD.weight[:2], GOOD.bias),
        "weight has shape (2, 2, 1, 2, 3); the network needs (3, 2, 1, 2, 3)",
    ),
    "turned": (
        ConvWeights(GOOD.weight.swapaxes(0, 1), GOOD.bias),
        "weight has shape (2, 3, 1, 2, 3); the network needs (3, 2, 1, 2, 3)",
    ),
    "short bias": (
        ConvWeights(GOOD.weight, GOOD.bias[:1]),
        "bias has shape (1,); the network needs (3,)",
    ),
    "integers": (
        ConvWeights(GOOD.weight.astype(np.int32), GOOD.bias),  # type: ignore[arg-type]
        "weight is int32; give it as float32",
    ),
    "not finite": (
        ConvWeights(GOOD.weight, GOOD.bias * np.float32(np.nan)),
        "bias has 3 values not finite",
    ),
    "list": (ConvWeights(GOOD.weight, GOOD.bias.tolist()), "bias is a list; give a NumPy array"),
    "one not finite": (
        ConvWeights(GOOD.weight, np.array([1, np.inf, 2], np.float32)),
        "bias has 1 value not finite",
    ),
    "nothing": (ConvWeights(GOOD.weight, None), "bias is a NoneType"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_a_program_made_wrong(fault: str) -> None:
    """They are refused before a run, and again where compiled code would read them."""
    wrong, said = FAULTS[fault]
    layers = random_weights(NETWORK, 5).layers
    with pytest.raises(InvalidInput) as refused:
        checked_weights(Weights({**layers, "first": wrong}, "mine"), NETWORK)
    assert str(refused.value).startswith(f"mine: layer first: {said}")
    with pytest.raises(InvalidInput) as refused:
        conv_weights(NETWORK.convolutions[0], wrong)
    assert str(refused.value).startswith(f"layer first: {said}")


def test_layers_missing_and_unknown() -> None:
    layers = dict(random_weights(NETWORK, 5).layers)
    more = Weights({**layers, "third": layers["last"]}, "mine")
    with pytest.raises(InvalidInput, match=r"mine: holds 'third\.bias'.* another network\?"):
        checked_weights(more, NETWORK)
    pair = (layers["last"].weight, layers["last"].bias)
    with pytest.raises(InvalidInput, match="mine: layer last has a tuple; give it ConvWeights"):
        checked_weights(Weights({**layers, "last": pair}, "mine"), NETWORK)  # type: ignore[dict-item]
    del layers["last"]
    fewer = Weights(layers, "mine")
    with pytest.raises(InvalidInput, match=r"mine: lacks 'last\.bias'.*it holds first\.bias"):
        checked_weights(fewer, NETWORK)
    with pytest.raises(InvalidInput, match=r"mine: has no weights for layer 'last'; .* of first"):
        _ = fewer["last"]
    with pytest.raises(InvalidInput, match="layer last needs weights"):
        conv_weights(NETWORK.convolutions[1], None)


TWO = Vec3(2, 2, 2)
GRAPH = Network(
    "graph",
    4,
    (
        Node(Conv("down", 4, 6, Vec3(1, 2, 2), "prelu", stride=TWO, groups=2), (INPUT,)),
        Node(Affine("norm", 6, "prelu"), ("down",)),
        Node(ConvTranspose("up", 6, 4, Vec3(3, 2, 2), "prelu", TWO), ("norm",)),
        Node(Add("sum", "relu"), ("up", INPUT)),
    ),
    "sum",
)


def graph_arrays() -> Arrays:
    layers = random_weights(GRAPH, 3).layers
    return {
        f"{name}.{kind}": array
        for name, layer in layers.items()
        for kind, array in layer.arrays.items()
    }


@pytest.mark.parametrize("suffix", SAVERS)
def test_all_kinds_of_layers_have_weights_in_files(suffix: str, tmp_path: Path) -> None:
    arrays = graph_arrays()
    assert {name: array.shape for name, array in arrays.items()} == {
        "down.weight": (6, 2, 1, 2, 2),
        "down.bias": (6,),
        "down.slope": (6,),
        "norm.weight": (6,),
        "norm.bias": (6,),
        "norm.slope": (6,),
        "up.weight": (6, 4, 3, 2, 2),
        "up.bias": (4,),
        "up.slope": (4,),
    }
    SAVERS[suffix](arrays, tmp_path / f"w{suffix}")
    found = load_weights(tmp_path / f"w{suffix}", GRAPH)
    assert found.sha256 == random_weights(GRAPH, 3).sha256
    assert found.nbytes == 4 * GRAPH.parameters
    np.testing.assert_array_equal(found["up"].slope, arrays["up.slope"])


def test_random_weights_keep_the_scale_of_values() -> None:
    conv = Conv("conv", 64, 32, Vec3(3, 3, 3), "prelu", groups=4)
    layers = conv, Affine("norm", 32), ConvTranspose("up", 32, 32, TWO, "relu", TWO)
    drawn = random_weights(Network.chain("net", 64, (Pool("pool", TWO), *layers)), 1)
    assert drawn["conv"].weight.std() == pytest.approx(np.sqrt(2 / (16 * 27)), rel=0.05)
    assert drawn["up"].weight.std() == pytest.approx(np.sqrt(2 / 32), rel=0.05)
    assert drawn["norm"].weight == pytest.approx(1, abs=0.5)
    assert drawn["norm"].bias == pytest.approx(0, abs=0.1)
    slope = drawn["conv"].slope
    assert slope is not None
    assert slope.mean() == pytest.approx(0.25, abs=0.1)


def test_the_hash_tells_slopes_apart() -> None:
    drawn = random_weights(GRAPH, 3)
    norm = drawn["norm"]
    assert norm.slope is not None
    changed = ConvWeights(norm.weight, norm.bias, norm.slope * np.float32(2))
    assert Weights({**drawn.layers, "norm": changed}, "mine").sha256 != drawn.sha256


def test_slopes_missing_and_unknown(tmp_path: Path) -> None:
    arrays = graph_arrays()
    drawn = random_weights(GRAPH, 3)
    norm = drawn["norm"]
    without = Weights({**drawn.layers, "norm": ConvWeights(norm.weight, norm.bias)}, "mine")
    with pytest.raises(InvalidInput, match=r"mine: lacks 'norm\.slope', which network graph needs"):
        checked_weights(without, GRAPH)
    with pytest.raises(InvalidInput, match="layer norm: slope is a NoneType; give a NumPy array"):
        conv_weights(GRAPH.weighted[1], without["norm"])
    save_npz(arrays | {"norm.slope": arrays["norm.slope"][:1]}, tmp_path / "w.npz")
    with pytest.raises(
        InvalidInput, match=r"layer norm: slope has shape \(1,\); the network needs"
    ):
        load_weights(tmp_path / "w.npz", GRAPH)
    layers = random_weights(NETWORK, 5).layers
    more = ConvWeights(GOOD.weight, GOOD.bias, np.ones(3, np.float32))
    with pytest.raises(InvalidInput, match=r"holds 'first\.slope', which network small has no"):
        checked_weights(Weights({**layers, "first": more}, "mine"), NETWORK)


@pytest.mark.slow
def test_threads_read_npz_files_at_the_same_time(
    tmp_path: Path,
) -> None:
    """Collecting garbage makes threads take turns within NumPy's parser of headers."""
    file = tmp_path / "w.npz"
    np.savez(file, **{f"array{n}": np.zeros((2, 2), np.float32) for n in range(20)})
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            sum(range(50))

    def read(_number: int) -> int:
        Garbage()
        return len(read_arrays(file))

    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(read, range(800))) == {20}
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)


def test_kernels_of_convolutions_are_flipped_as_they_are_read(tmp_path: Path) -> None:
    text = "name: net\nlayers:\n  - conv: {features: 2, kernel: [2, 3, 4], mode: MODE}\n"
    arrays = {
        "conv1.weight": np.random.default_rng(0).standard_normal((2, 1, 2, 3, 4), np.float32),
        "conv1.bias": np.zeros(2, np.float32),
    }
    np.savez(tmp_path / "net.npz", **arrays)
    found = {}
    for mode in ("correlation", "convolution"):
        path = tmp_path / f"{mode}.yaml"
        path.write_text(text.replace("MODE", mode))
        network = load_network(path)
        found[mode] = load_weights(tmp_path / "net.npz", network)["conv1"].weight
        again = tmp_path / f"{mode}-again.yaml"
        again.write_text(network_text(network))
        assert load_network(again) == network
    np.testing.assert_array_equal(found["correlation"], arrays["conv1.weight"])
    np.testing.assert_array_equal(
        found["convolution"], np.flip(arrays["conv1.weight"], axis=(2, 3, 4))
    )


LARGE = Network.chain("large", 64, (Conv("conv", 64, 512, Vec3(8, 8, 8), "relu"),))
SMALL = 2**22  # bytes: of 2**26


def large_file(path: Path) -> Weights:
    drawn = random_weights(LARGE, 3)
    save_file({f"conv.{kind}": each for kind, each in drawn["conv"].arrays.items()}, path)
    return drawn


@pytest.mark.skipif(FORGET is None, reason="this system gives no pages back")
def test_weights_of_a_mapped_file_take_memory_while_they_are_used(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    drawn = large_file(file)
    expected = drawn["conv"].weight.sum(), drawn.sha256
    del drawn
    before = resident_memory()
    mapped = weights_for(LARGE, file, None, mapped=True)
    assert resident_memory() - before < SMALL
    assert mapped.sha256 == expected[1]
    assert resident_memory() - before < SMALL
    assert mapped["conv"].weight.sum() == expected[0]
    assert resident_memory() - before > 2**26
    mapped.give_back()
    assert resident_memory() - before < SMALL
    again = pickle.loads(pickle.dumps(mapped))
    np.testing.assert_array_equal(again["conv"].weight, mapped["conv"].weight)
    with pytest.raises(ValueError, match="read-only"):
        mapped["conv"].weight[0] = 0


def assert_is_read(file: Path) -> None:
    """Check that a file is not mapped, and gives the weights that it gives elsewhere."""
    assert not is_mapped(file)
    weights = weights_for(NETWORK, file, None, mapped=True)
    assert weights.sha256 == load_weights(file, NETWORK).sha256


@pytest.mark.parametrize(
    ("name", "dtype"), [("w.safetensors", "float16"), ("w.npz", "float32"), ("w.h5", "float32")]
)
def test_weights_of_other_files_are_read(tmp_path: Path, name: str, dtype: str) -> None:
    file = tmp_path / name
    SAVERS[file.suffix](good(dtype), file)
    assert_is_read(file)


def test_weights_that_would_not_be_aligned_are_read(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file(good(), file)
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" "  # the format does not ask for more
    header += b" " * (len(header) % 4 == 0)
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert_is_read(file)


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_file(good(), file)
    assert is_mapped(file)
    mapped = weights_for(NETWORK, file, None, mapped=True)
    with file.open("r+b") as opened:
        opened.truncate(100)
    with pytest.raises(InvalidInput, match="bytes are missing; its file was overwritten; run ag"):
        checked_weights(mapped, NETWORK)
    assert not is_mapped(file)
    with pytest.raises(InvalidInput, match="is the file whole"):
        weights_for(NETWORK, file, None, mapped=True)
