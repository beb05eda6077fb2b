"""Imports in a process of their own: the same files and errors, and no memory left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from import_cases import torch_or_skip

from znni.core.errors import InvalidInput, RunFailed
from znni.importing.checks import NotExpressed
from znni.inference import import_process
from znni.inference.import_process import import_apart
from znni.inference.network_import import import_network
from znni.network.network_file import load_network

torch = torch_or_skip()
nn = torch.nn


def exported(folder: Path, module: nn.Module) -> Path:
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(module.eval(), (torch.zeros(1, 2, 8, 8, 8),)), path)
    return path


@pytest.mark.slow
def test_the_same_files_are_made(tmp_path: Path) -> None:
    file = exported(tmp_path, nn.Sequential(nn.Conv3d(2, 3, 3), nn.ReLU()))
    apart = import_apart(file, tmp_path / "net.yaml")
    (tmp_path / "here").mkdir()
    here = import_network(file, tmp_path / "here" / "net.yaml")
    assert str(apart) == str(here).replace("/here/", "/")
    for name in ("net.yaml", "net.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert load_network(apart.path) == apart.network


class Odd(nn.Module):
    def forward(self, x: object) -> object:
        return torch.sort(x, dim=2).values


@pytest.mark.slow
def test_errors_come_back_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"net\.pt2: No such file|no such file"):
        import_apart(tmp_path / "net.pt2", tmp_path / "net.yaml")
    with pytest.raises(NotExpressed, match="sort") as refused:
        import_apart(exported(tmp_path, Odd()), tmp_path / "net.yaml")
    assert refused.value.why
    assert not (tmp_path / "net.yaml").exists()


def test_a_process_that_is_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_given: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], -9, b"")

    monkeypatch.setattr(import_process, "_ended_child", killed)
    with pytest.raises(RunFailed, match=r"net\.pt2: the process .* ended by signal SIGKILL"):
        import_apart(Path("net.pt2"), Path("net.yaml"))
