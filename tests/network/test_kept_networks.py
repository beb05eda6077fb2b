"""Networks that commands keep, so that later ones need not read and check their files again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL_NET

from znni.core import loading
from znni.core.errors import InvalidInput
from znni.core.shipped import NETWORKS
from znni.core.value_cache import store_value
from znni.network import network_file
from znni.network.network import Network
from znni.network.network_file import load_network

# A command in a process of its own, which tells afterwards what it loaded.
PROGRAM = """
import sys
from znni.core.loading import own_process
own_process()
from znni.network.network_file import load_network
print(load_network(sys.argv[1]))
print("loaded:", *sys.modules)
"""

# Modules that read and check files.
READING = {"pydantic", "ruamel.yaml", "znni.network.network_entries"}


@pytest.fixture
def kept(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept networks of a process that runs one command."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    monkeypatch.setattr(loading, "_own", True)
    return own_folder / "cache" / "znni" / "networks"


def everything(network: Network) -> list[object]:
    """Return all parts of a network, also those that need not be equal in equal networks."""
    return [getattr(network, field.name) for field in fields(network)]


@pytest.mark.parametrize("name", NETWORKS.names)
def test_a_kept_network_is_the_one_in_the_file(kept: Path, name: str) -> None:
    first = load_network(name)
    assert len(list(kept.iterdir())) == 1
    again = load_network(name)
    assert again is not first
    assert everything(again) == everything(first)


@pytest.mark.slow
@pytest.mark.usefixtures("kept")
def test_a_command_reads_a_file_once() -> None:
    Path("small.yaml").write_text(SMALL_NET)

    def loaded() -> tuple[str, set[str]]:
        command = [sys.executable, "-c", PROGRAM, "small.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, modules = done.stdout.partition("loaded:")
        return text, set(modules.split()) & READING

    text, modules = loaded()
    assert modules == READING
    assert loaded() == (text, set())
    Path("small.yaml").write_text(SMALL_NET.replace("small", "other"))
    assert loaded() == (text.replace("small", "other"), READING)


def test_what_a_network_depends_on_tells_it_apart(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("inner").mkdir()
    for path in (Path("small.yaml"), Path("inner/small.yaml")):
        path.write_text(f"{SMALL_NET}weights: some.npz\n")
        assert load_network(path).weights == path.parent / "some.npz"
    assert len(list(kept.iterdir())) == 2
    monkeypatch.setattr(network_file, "state_of_source", lambda _: "another")
    load_network("small.yaml")
    assert len(list(kept.iterdir())) == 3


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its former contents would stand for the network of the later ones."""
    path, read = Path("small.yaml"), network_file._read
    path.write_text(SMALL_NET)

    def late(*given: Any) -> Network:
        path.write_text(SMALL_NET.replace("small", "other"))
        return read(*given)

    with monkeypatch.context() as changing:
        changing.setattr(network_file, "_read", late)
        assert load_network(path).name == "other"
    assert not kept.exists()
    path.write_text(SMALL_NET)
    assert load_network(path).name == "small"


def test_a_file_that_is_no_network_is_refused_again(kept: Path) -> None:
    Path("small.yaml").write_text("name: small\n")
    for _ in range(2):
        with pytest.raises(InvalidInput, match="line 1: a network has layers"):
            load_network("small.yaml")
    with pytest.raises(InvalidInput, match="no such network file"):
        load_network("absent.yaml")
    assert not kept.exists()


def test_a_file_of_something_else_counts_as_absent(kept: Path) -> None:
    found = load_network("n337")
    (file,) = kept.iterdir()
    store_value(file, found.nodes)
    assert load_network("n337") == found


def test_a_process_of_someone_else_keeps_no_network(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_own", False)
    load_network("n337")
    assert not kept.exists()
