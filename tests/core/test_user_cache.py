"""The user's folder for files that can be made again."""

from __future__ import annotations

import os
from pathlib import Path

from znni.core.user_cache import state_of_source


def state(root: Path) -> str:
    """The state of the code in a folder, read now."""
    state_of_source.cache_clear()
    return state_of_source(root)


def test_the_state_of_code_changes_with_each_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    first, second = tmp_path / "a.py", inner / "b.py"
    first.write_text("1")
    second.write_text("2")
    states = [state(tmp_path)]
    second.write_text("22")  # another size
    states.append(state(tmp_path))
    os.utime(first, ns=(1, 1))  # another time
    states.append(state(tmp_path))
    second.rename(tmp_path / "b.py")  # another place
    states.append(state(tmp_path))
    first.unlink()
    states.append(state(tmp_path))
    assert len(set(states)) == len(states)
    (inner / "__pycache__").mkdir()
    (inner / "__pycache__" / "b.py").write_text("no code of ours")
    (inner / "data.txt").write_text("no code")
    assert state(tmp_path) == states[-1]
