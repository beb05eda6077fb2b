"""Run README's commands in an empty clone, with an empty environment, as on a fresh machine.

    python3 tests/packaging/fresh_machine.py                        README's commands
    python3 tests/packaging/fresh_machine.py "make test TORCH="     this command instead
    python3 tests/packaging/fresh_machine.py "make quick" README    this command, then README's

The clone has the last commit. The home folder is empty. The environment has only what a machine's
owner sets: the paths of programs, the source of packages, and what mends a processor. The script
needs Python and git, and no package. Its exit code is the code of the first command that fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = "README"

# Variables of the machine's owner: programs, language, and how to reach a package index.
OWN = {"PATH", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
OWN_BEGINNINGS = ("PIP_", "UV_", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
OWN_ENDINGS = ("_proxy", "_PROXY")


def commands_of_readme(root: Path) -> list[str]:
    """Return the commands of ``make`` in the blocks of a checkout's README, in their order."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (root / "README.md").read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.startswith("make ")]


def environment(home: Path, python: str) -> dict[str, str]:
    """Return the environment of a user who has just got the machine.

    Args:
        home: an empty folder.
        python: the interpreter that ``make`` shall use.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name in OWN or name.startswith(OWN_BEGINNINGS) or name.endswith(OWN_ENDINGS)
    }
    return own | {"HOME": str(home), "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "PYTHON": python}


def megabytes(folder: Path) -> int:
    """Return the size of all files in a folder, in units of 10^6 bytes; links count once."""
    seen = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        seen[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return round(sum(seen.values()) / 1e6)


def run(commands: list[str], folder: Path, python: str) -> int:
    """Run commands in a new clone, and print the seconds and the disk that each took.

    Returns:
        The exit code of the first command that fails, or 0.
    """
    folder.chmod(0o755)  # tests start processes of another user
    home, clone = folder / "home", folder / "znni"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    told, code = list[str](), 0
    own = {README: commands_of_readme(clone)}
    for command in chain.from_iterable(own.get(each, [each]) for each in commands):
        print(f"$ {command}", flush=True)
        started = time.monotonic()
        code = subprocess.run(
            shlex.split(command), cwd=clone, env=environment(home, python), check=False
        ).returncode
        seconds = time.monotonic() - started
        told.append(f"{command}: exit code {code}, {seconds:.0f} s, {megabytes(folder)} MB in all")
        if code:
            break
    print(f"on a fresh machine, with {python}:", *told, sep="\n  ", flush=True)
    return code


def main() -> int:
    """Run README's commands, or the commands of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "commands", nargs="*", default=[README], help="commands to run; README stands for its own"
    )
    parser.add_argument("--python", default="python3", help="the interpreter that make uses")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder:
        return run(arguments.commands, Path(folder), arguments.python)


if __name__ == "__main__":
    sys.exit(main())
