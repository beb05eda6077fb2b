"""``znni import`` on the command line: written files, and what it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import refused, succeeds, write_case, znni
from hypothesis import given
from hypothesis import strategies as st
from import_cases import numbers, read_back, write_znn, znn_fields
from safetensors.numpy import save_file

from znni.core.shapes import Vec3
from znni.importing.folding import Folded
from znni.importing.network_writer import write_network
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.weights import ConvWeights, Weights

pytestmark = pytest.mark.usefixtures("fake_primitives", "nothing_partial")


def test_a_network_of_znn_is_imported_and_runs() -> None:
    write_znn(Path("znn.h5"), znn_fields())
    said = succeeds("import", "znn.h5", "--out", "net.yaml")
    assert said.splitlines() == [
        "net.yaml: net: 3 layers, 113 parameters, 1 -> 2 maps, field of view 2x6x9, "
        "total pooling 1x2x2",
        "net.safetensors: its weights",
        "not compared: ZNN itself, which would run it, is not here",
        "it takes voxels as they are stored: if it was trained on scaled ones, add to net.yaml "
        "input: {scale: 0.00392157}, or input: {normalize: zscore}",
    ]
    write_case(Path())
    assert "out.h5: " in succeeds("infer", "volume.h5", "--net", "net.yaml", "--out", "out.h5")


def test_a_state_dict_needs_a_network_file() -> None:
    save_file({"0.weight": numbers(2, 1, 1, 2, 3)}, "state.safetensors")
    command = ("import", "state.safetensors", "--out", "net.yaml")
    assert "--like NET.yaml" in refused(*command)
    Path("like.yaml").write_text(
        "name: like\nlayers: [{conv: {features: 2, kernel: [1, 2, 3], activation: relu}}]"
    )
    assert succeeds(*command, "--like", "like.yaml").startswith("net.yaml: like: 1 layer")
    write_znn(Path("znn.h5"), znn_fields())
    wrong = refused("import", "znn.h5", "--out", "other.yaml", "--like", "like.yaml")
    assert "is for state dicts: leave it out" in wrong


def test_nothing_is_replaced_unasked_nor_what_is_no_network() -> None:
    write_znn(Path("znn.h5"), znn_fields())
    command = ("import", "znn.h5", "--out", "net.yaml")
    succeeds(*command)
    assert "net.yaml: exists" in refused(*command)
    before = Path("net.yaml").read_text()
    succeeds(*command, "--overwrite")
    assert Path("net.yaml").read_text() == before
    Path("notes.yaml").write_text("notes: of mine")
    assert "unknown key 'notes'" in refused(
        "import", "znn.h5", "--out", "notes.yaml", "--overwrite"
    )
    save_file({"0.weight": numbers(2, 1, 1, 2, 3)}, "state.safetensors")
    own = ("import", "state.safetensors", "--out", "state.yaml", "--overwrite")
    assert "state.safetensors: is what is imported" in refused(*own)
    assert "ends in .yaml" in refused("import", "znn.h5", "--out", "net.json")
    assert "cannot be written" in refused("import", "znn.h5", "--out", "nowhere/net.yaml")
    assert "no such file" in refused("import", "missing.onnx", "--out", "new.yaml")
    assert "unknown kind of file '.caffemodel'" in refused(
        "import", write_znn(Path("net.caffemodel"), {}), "--out", "new.yaml"
    )


def test_without_pytorch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.importing.torch_checkpoint.find_spec", lambda _name: None)
    Path("state.pt").touch()
    assert "pip install 'znni[torch]'" in refused("import", "state.pt", "--out", "net.yaml")


names = st.text(min_size=1, max_size=6).filter(lambda t: t.isprintable() and "/" not in t)
extents = st.builds(Vec3, *[st.integers(1, 3)] * 3)


@st.composite
def written(draw: st.DrawFn) -> Folded:
    """Networks with any names, and any text about their source."""
    called = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    layers: list[Conv | Pool] = []
    arrays, maps = {}, 1
    for index, name in enumerate(called):
        if index and draw(st.booleans()):
            layers.append(Pool(name, draw(extents)))
            continue
        conv = Conv(name, maps, draw(st.integers(1, 3)), draw(extents), "relu")
        layers.append(conv)
        arrays[name] = ConvWeights(numbers(*conv.weight_shape), numbers(conv.out_features, seed=1))
        maps = conv.out_features
    finite = st.floats(-1e6, 1e6)
    scaling = InputScaling(draw(finite), draw(finite))
    network = Network.chain(draw(names), 1, tuple(layers), scaling)
    return Folded(network, Weights(arrays, "drawn"), tuple(draw(st.text()) for _ in layers))


@pytest.mark.slow
@given(written(), st.text())
def test_what_is_written_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, folded: Folded, source: str
) -> None:
    out = tmp_path_factory.mktemp("written") / "net.yaml"
    write_network(out, folded, source)
    network, weights = read_back(out)
    assert network == folded.network
    assert network.name == folded.network.name
    assert weights.sha256 == folded.weights.sha256


def test_help_names_the_kinds_of_files() -> None:
    said = znni("import", "--help").out
    assert all(kind in said for kind in (".pt2", ".onnx", ".safetensors", ".h5", "--like"))
