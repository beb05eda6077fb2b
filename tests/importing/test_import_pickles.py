"""PyTorch files with code or pickles: the code never runs, and the user learns what to save."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from import_cases import refusal, sequential, torch_or_skip

torch = torch_or_skip()
nn = torch.nn


def program_file(path: Path, module: Any) -> Path:
    torch.export.save(torch.export.export(module, (torch.zeros(1, 1, 2, 2, 2),)), path)
    return path


LEFT = "left-by-a-pickle"


class Malicious:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (LEFT, "w"))


def test_pickles_are_not_run(own_folder: Path) -> None:
    torch.save({"0.weight": torch.zeros(1), "more": Malicious()}, "zipped.pt")
    torch.save(Malicious(), "legacy.pth", _use_new_zipfile_serialization=False)
    Path("plain.ckpt").write_bytes(pickle.dumps(Malicious(), protocol=2))
    torch.save(sequential(), "module.bin")
    for name in ("zipped.pt", "legacy.pth", "plain.ckpt", "module.bin"):
        message = refusal(name, own_folder)
        assert "would run code of the file" in message
        assert "torch.save(module.state_dict(), ...)" in message
        assert not Path(LEFT).exists()
    pickle.loads(pickle.dumps(Malicious())).close()
    assert Path(LEFT).exists()  # proves that the code would run


def test_pickled_parts_of_programs_are_not_run(own_folder: Path) -> None:
    file = program_file(own_folder / "model.pt2", nn.Sequential(nn.Conv3d(1, 1, 1)))
    danger = io.BytesIO()
    torch.save(Malicious(), danger)

    def pickled(name: str, data: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            config = json.loads(data)
            for entry in config["config"].values():
                entry["use_pickle"] = True
            return json.dumps(config).encode()
        return danger.getvalue() if "weights/weight_" in name else data

    rewrite(file, pickled)
    assert "not plain float32" in refusal(file, own_folder)
    assert not Path(LEFT).exists()


def rewrite(file: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Change the members of a zip archive."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, change(name, data))


def test_files_of_other_kinds_are_told_apart(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv3d(1, 1, 1)).eval()
    program_file(tmp_path / "model.pt2", module).rename(tmp_path / "program.pt")
    assert "name it with the suffix .pt2" in refusal(tmp_path / "program.pt", tmp_path)
    torch.save(module.state_dict(), tmp_path / "state.pt2")
    assert "no exported program" in refusal(tmp_path / "state.pt2", tmp_path)
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as archive:
        archive.writestr("script/constants.pkl", b"")
    assert "TorchScript" in refusal(tmp_path / "script.pt", tmp_path)
    torch.save([1, 2], tmp_path / "list.pt")
    assert "holds none" in refusal(tmp_path / "list.pt", tmp_path)
    (tmp_path / "model.pt2").write_bytes(b"PK\x03\x04 and no more")
    assert "cannot be read as an exported program" in refusal(tmp_path / "model.pt2", tmp_path)
    file = program_file(tmp_path / "model.pt2", module)
    rewrite(file, lambda _name, data: data.replace(b'"major": 8', b'"major": 9'))
    assert "version 9 of exported programs" in refusal(file, tmp_path)
    assert "is no network" in refusal(object(), tmp_path)
