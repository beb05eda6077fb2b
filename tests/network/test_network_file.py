"""Network files: what is read, and errors that give the line, the value and a remedy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import NETWORKS

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.network_file import load_network

WHOLE = """\
name: whole
in_features: 2
input: {scale: 0.5, offset: -1}
weights: whole.safetensors
layers:
  - conv: {features: 4, kernel: [1, 2, 3], activation: relu}
  - pool: {window: 2}
  - conv: {features: 3, kernel: 3}
    name: last
"""


def load(text: str | bytes, folder: Path) -> Network:
    path = folder / "net.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_network(path)


def refusal(text: str | bytes, folder: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        load(text, folder)
    message = str(refused.value)
    assert message.startswith(str(folder / "net.yaml"))
    return message.removeprefix(str(folder / "net.yaml"))


def test_everything_there_is(tmp_path: Path) -> None:
    network = load(WHOLE, tmp_path)
    assert network == Network.chain(
        "whole",
        2,
        (
            Conv("conv1", 2, 4, Vec3(1, 2, 3), "relu"),
            Pool("pool1", Vec3(2, 2, 2)),
            Conv("last", 4, 3, Vec3(3, 3, 3), "identity"),
        ),
        InputScaling(0.5, -1.0),
    )
    assert network.weights == tmp_path / "whole.safetensors"


@pytest.mark.parametrize("path", sorted(NETWORKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_networks_here_load(path: Path) -> None:
    assert load_network(path).name == path.stem


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("relu", "rleu", 6, ["activation is 'rleu'; choose one of relu", "{leaky_relu: SLOPE}"]),
        ("kernel: 3", "kernal: 3", 8, ["unknown key 'kernal'", "did you mean 'kernel'"]),
        ("in_features: 2", "in_features: []", 2, ["in_features is []; give an integer from 1"]),
        ("whole.safetensors", "3", 4, ["weights is 3; give the name of a file"]),
        ("whole.safetensors", "''", 4, ["weights is ''; give the name of a file"]),
        ("{features: 3, kernel: 3}", "3", 8, ["layers.2.conv is 3; give it as keys"]),
        ("in_features", "in_feature", 2, ["unknown key 'in_feature'", "'in_features'"]),
        ("window: 2", "window: 2, kernel: 2", 7, ["unknown key 'kernel'", "has a window:"]),
        (
            "window: 2",
            "window: 2, stride: 3, padding: 1",
            5,
            ["spans 3x3x3 voxels", "can give every voxel"],
        ),
        (
            "kernel: 3",
            "kernel: 3, stride: 2, padding: 1",
            5,
            ["spans 4x4x4 voxels; end it with upsampling"],
        ),
        ("pool: {window: 2}", "batchnorm: {}", 7, ["unknown key 'batchnorm'", "fold"]),
        (
            "  - pool: {window: 2}",
            "  - pool:",
            7,
            ["a layer is of one kind; give one of conv, conv_transpose, pool, "],
        ),
        ("  - pool: {window: 2}", "  -", 7, ["layers.1 is None; give it as keys and"]),
        ("features: 4, ", "", 6, ["lacks the key 'features'"]),
        ("name: whole\n", "", 1, ["lacks the key 'name'"]),
        ("name: whole", "name: 3", 1, ["name", "3", "string"]),
        ("name: whole", "name: a/b", 1, ["name", "'a/b'"]),
        ("features: 4", "features: 0", 6, ["layers.0.conv.features is 0; give an integer from 1"]),
        ("features: 4", "features: yes", 6, ["features is 'yes'; give an integer from 1"]),
        ("features: 4", "features: true", 6, ["features is True; give an integer from 1"]),
        ("features: 4", "features: 4.0", 6, ["features is 4.0; give an integer from 1"]),
        ("features: 4", f"features: {10**30}", 6, ["features"]),
        ("[1, 2, 3]", "[1, 2]", 6, ["kernel", "[1, 2]", "[z, y, x]"]),
        ("[1, 2, 3]", "[1, 2, 0]", 6, ["kernel", "from 1"]),
        ("[1, 2, 3]", "true", 6, ["kernel", "True"]),
        ("[1, 2, 3]", "-3", 6, ["kernel", "-3"]),
        ("[1, 2, 3]", f"{10**30}", 6, ["kernel"]),
        ("0.5", ".inf", 3, ["input.scale", "inf", "finite"]),
        ("-1", ".nan", 3, ["input.offset", "nan", "finite"]),
        ("{scale: 0.5, offset: -1}", "[1]", 3, ["keys and values: scale, offset"]),
        ("name: last", "name: conv1", 9, ["an earlier layer is also named 'conv1'; rename one"]),
        ("name: last", "name: pool1", 9, ["also named 'pool1'"]),
        (
            "    name: last",
            "    pool: {window: 2}",
            8,
            ["a layer is of one kind; give one of conv, conv_transpose, pool, "],
        ),
        ("name: whole", "name: whole\nname: again", 2, ["not valid YAML", "duplicate"]),
        ("{window: 2}", "{window: 2", 8, ["not valid YAML"]),
        ("window: 2", "window: !!python/object:os.system 2", 7, ["window"]),
        ("name: whole", "2: whole", 1, ["unknown key"]),
    ],
)
def test_a_mistake_is_found_at_its_line(
    old: str, new: str, line: int, said: list[str], tmp_path: Path
) -> None:
    text = WHOLE.replace(old, new, 1)
    assert text != WHOLE
    message = refusal(text, tmp_path)
    assert message.startswith(f", line {line}: ")
    for part in said:
        assert part in message
    assert "Input should" not in message  # pydantic's words


@pytest.mark.parametrize("text", ["", "name", "- 1", "3", "null", "# nothing"])
def test_not_a_mapping(text: str, tmp_path: Path) -> None:
    assert "a network is a mapping" in refusal(text, tmp_path)


@pytest.mark.parametrize(("layers", "found"), [("3", "3"), ("[]", "[]"), ("{a: 1}", "{'a': 1}")])
def test_layers_that_are_no_list(layers: str, found: str, tmp_path: Path) -> None:
    said = f", line 2: layers is {found}; give a list of one layer or more"
    assert refusal(f"name: net\nlayers: {layers}", tmp_path) == said


def test_only_pools(tmp_path: Path) -> None:
    text = "name: pools\nlayers: [{pool: {window: 2}}]"
    assert "no convolution" in refusal(text, tmp_path)


def test_a_typo_comes_before_the_key_that_it_leaves_missing(tmp_path: Path) -> None:
    text = "nmae: net\nlayers: [{conv: {features: 1, kernel: 1}}]"
    assert refusal(text, tmp_path).startswith(", line 1: unknown key 'nmae'")


@pytest.mark.parametrize("text", ["[" * 2000, "? " * 50, "{a: " * 99, "- " * 99])
def test_deep_nesting_is_refused_at_once(text: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path) == ", line 1: more than 8 levels; unnest it"


def test_not_text(tmp_path: Path) -> None:
    said = refusal(b"name: \xff\xfe", tmp_path)
    assert said == ": is not UTF-8 text, as YAML must be; give a network file"


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such network file"):
        load_network(tmp_path / "none.yaml")
    with pytest.raises(InvalidInput, match="is a folder, and no network file"):
        load_network(tmp_path)


def test_a_message_is_short_whatever_the_value(tmp_path: Path) -> None:
    assert len(refusal(f"name: [{'1, ' * 999}]\nlayers: 3", tmp_path)) < 300
    assert len(refusal(f"name: net\nlayers: {'x' * 999}", tmp_path)) < 300


WORDS = r"""
3 -1 0 0.5 1e999 .inf .nan true no ~ '' "" x [] {} [1,2,3] [[1]] {a:1} {1:2} {[1]:2} 2001-01-01
12:30:00 0o17 0x1F 1_000 1e3 !!binary aGk= !!set !!omap !!int !!float !foo !!null !!timestamp
!!python/name:os.system !!merge &a &b *a *b [*a] << {<<:3} {<<:*a} "\0" "a\nb" [ { ] } : - | > %
@ ` --- ... ? , # {window:2} {features:1,kernel:1} [null] {conv:null} {kernel:*a} {scale:1e308}
"""
TRAPS = ["9" * 5000, "[" * 2000, "? " * 50, "&a [*a]", "&b {b: *b}", "{<<: {a: 1}}"]
SNIPPETS = st.sampled_from([*(word.replace(":", ": ") for word in WORDS.split()), *TRAPS])


def only_invalid_input(text: bytes, folder: Path) -> None:
    """Load the file. ``InvalidInput`` is fine; any other error fails the test."""
    path = folder / "fuzz.yaml"
    path.write_bytes(text)
    with suppress(InvalidInput):
        load_network(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(st.lists(SNIPPETS, min_size=6, max_size=6), st.integers(0, 2**6))
def test_any_values_load_or_are_refused(folder: Path, values: list[str], kept: int) -> None:
    usual = ["n", "1", "{scale: 2}", "w.npz", "{features: 1, kernel: 1}", "{window: 2}"]
    mixed = [u if kept >> i & 1 else v for i, (u, v) in enumerate(zip(usual, values, strict=True))]
    name, features, scaling, weights, conv, pool = mixed
    text = (
        f"name: {name}\nin_features: {features}\ninput: {scaling}\nweights: {weights}\n"
        f"layers:\n- conv: {conv}\n- pool: {pool}\n"
    )
    only_invalid_input(text.encode(), folder)


@given(st.lists(st.one_of(SNIPPETS, st.sampled_from(WHOLE.split(" ")), st.just("\n")), max_size=30))
def test_any_words_load_or_are_refused(folder: Path, words: list[str]) -> None:
    only_invalid_input(" ".join(words).encode(), folder)


@given(st.binary(max_size=200), st.integers(0, len(WHOLE)))
def test_any_bytes_load_or_are_refused(folder: Path, inserted: bytes, at: int) -> None:
    only_invalid_input(WHOLE[:at].encode() + inserted + WHOLE[at:].encode(), folder)


@given(st.text(max_size=100))
def test_any_text_loads_or_is_refused(folder: Path, text: str) -> None:
    only_invalid_input(text.encode(errors="surrogatepass"), folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"in_features": 0}, "layer c: in_features is 0; give 1 or more"),
        ({"out_features": -3}, "layer c: out_features is -3; give 1 or more"),
        ({"out_features": 2.0}, "layer c: out_features is 2.0"),
        ({"kernel": Vec3(3, 0, 3)}, "layer c: kernel is Vec3(z=3, y=0, x=3); give a Vec3"),
        ({"kernel": Vec3(3, 3, 2.5)}, "x=2.5); give a Vec3 of three positive integers"),  # type: ignore[arg-type]
        ({"kernel": (3, 3, 3)}, "layer c: kernel is (3, 3, 3); give a Vec3"),
        ({"kernel": 3}, "layer c: kernel is 3; give a Vec3"),
        ({"activation": "rleu"}, "layer c: unknown activation 'rleu'; choose one of relu, "),
        ({"activation": ["relu"]}, "layer c: unknown activation ['relu']"),
    ],
)
def test_a_convolution_is_checked_when_it_is_made(fields: dict[str, Any], said: str) -> None:
    good = {"in_features": 1, "out_features": 2, "kernel": Vec3(3, 3, 3), "activation": "relu"}
    assert Conv("c", **good).parameters == 56  # type: ignore[arg-type]
    with pytest.raises(InvalidInput) as refused:
        Conv("c", **(good | fields))
    assert said in str(refused.value)


@pytest.mark.parametrize("window", [Vec3(2, 2, 0), Vec3(-1, 2, 2), (2, 2, 2), 2, None])
def test_a_pooling_is_checked_when_it_is_made(window: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        Pool("p", window)
    assert str(refused.value).startswith(f"layer p: window is {window!r}; give a Vec3 of three")


@pytest.mark.usefixtures("own_folder")
def test_files_of_other_libraries_are_to_be_imported() -> None:
    Path("net.pth").write_bytes(b"\x08\x0a\xff")
    with pytest.raises(InvalidInput, match=r"net\.pth: is to be imported first; run znni import"):
        load_network("net.pth")


def test_a_module_is_no_network_file() -> None:
    with pytest.raises(InvalidInput, match=r"the network is a list; .*znni\.import_network"):
        load_network([1, 2])  # type: ignore[arg-type]
