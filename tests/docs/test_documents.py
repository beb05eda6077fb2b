"""README and site say what works: their commands and Python examples run on small data.

A block that cannot run here has a comment before it, ``<!-- not run: REASON -->``. One that needs a
library that may be absent has ``<!-- needs: LIBRARY -->``. The program must still understand its
commands. Each example of Python stands by itself.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import typer
from command_line import znni
from numpy.typing import NDArray
from paths import ROOT
from ruamel.yaml import YAML

from znni.cli import app

SITE = ROOT / "docs"
# Pages of records are left out: they name commands by their names of that time.
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in SITE.rglob("*.md") if path.parent.name != "records"),
]

BLOCK = re.compile(
    r"^(?:<!-- (?:not run: (?P<reason>[^\n]+)|needs: (?P<library>\w+)) -->\n)?"
    r"```(?P<language>bash|python)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class CodeBlock:
    """A block of code in a document, and why it is not run if it is not."""

    document: Path
    line: int
    language: str
    code: str
    reason: str | None = None
    library: str | None = None

    @property
    def runs(self) -> bool:
        return self.reason is None and (self.library is None or has(self.library))

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def has(library: str) -> bool:
    return find_spec(library) is not None


def blocks_of(document: Path) -> list[CodeBlock]:
    text = document.read_text(encoding="utf-8")
    return [
        CodeBlock(
            document,
            text.count("\n", 0, found.start("code")),
            found["language"],
            found["code"],
            found["reason"],
            found["library"],
        )
        for found in BLOCK.finditer(text)
    ]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]


def commands(block: CodeBlock) -> Iterator[list[str]]:
    """The commands of a block of the shell, without comments and variables before them."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
            words = words[1:]
        if words:
            yield words


@cache
def parsers() -> dict[str, Any]:
    """Return the parser of each command, by its name; groups have commands of their own."""
    found = dict[str, Any]()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        within = getattr(command, "commands", {})
        found |= {f"{name} {own}": parser for own, parser in within.items()} or {name: command}
    return found


def check_understood(words: list[str], block: CodeBlock) -> None:
    """Fail unless the program has the command, its options and their choices."""
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), f"{block}: make {arguments}"
    elif program == "pip":
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = re.findall(r"\[([\w,]+)\]", " ".join(arguments))
        known = set(settings["optional-dependencies"])
        assert {name for group in extras for name in group.split(",")} <= known, str(block)
    elif program == "znni":
        name = " ".join(arguments[:2])
        name = name if name in parsers() else arguments[0]
        arguments = arguments[name.count(" ") :]
        command = parsers()[name]
        try:
            with command.make_context(arguments[0], arguments[1:]):
                pass
        except typer.TyperException as error:
            pytest.fail(f"{block}: {' '.join(words)}: {error.format_message()}")
    else:
        assert program in {
            "python",
            "git",
            "dask",
            "docker",
            "apptainer",
            "napari",
            "nnUNetv2_predict",
        }, f"{block}: an unknown program, {program}"


@pytest.fixture
def folder(own_folder: Path) -> Path:
    """A folder with what the documents name: networks, machines and small volumes."""
    (own_folder / "machines").symlink_to(ROOT / "machines")
    (own_folder / "networks").mkdir()
    for path in (ROOT / "networks").iterdir():
        if path.name != "cells.h5":
            (own_folder / "networks" / path.name).symlink_to(path)
    for name in ("networks/cells.h5", "volume.h5"):
        with h5py.File(own_folder / name, "w") as file:
            file.create_dataset("raw", data=small_volume())
    return own_folder


def small_volume() -> NDArray[np.uint8]:
    with h5py.File(ROOT / "networks" / "cells.h5") as file:
        values: NDArray[np.uint8] = file["raw"][:48, :64, :64]
        return values


def run(block: CodeBlock) -> None:
    """Run a block in this process."""
    if block.language == "python":
        exec(compile(block.code, str(block), "exec"), {"__name__": "example"})
        return
    for words in commands(block):
        check_understood(words, block)
        assert words[0] == "znni", f"{block}: {words[0]} is not run; say why in a comment before"
        outcome = znni(*words[1:])
        assert outcome.code == 0, f"{block}: {' '.join(words)}: {outcome.err}"


RUN = sorted({block.document for block in BLOCKS if block.runs})


@pytest.mark.slow
@pytest.mark.parametrize("document", RUN, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.usefixtures("folder")
def test_what_a_document_says_works(document: Path) -> None:
    for block in blocks_of(document):
        if block.runs:
            run(block)


NOT_RUN = [block for block in BLOCKS if not block.runs]


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
@pytest.mark.usefixtures("folder")
def test_what_is_not_run_is_still_understood(block: CodeBlock) -> None:
    if block.language == "python":
        compile(block.code, str(block), "exec")
        for name in re.findall(r"\bznni\.(\w+)\(", block.code):
            assert name in dir(sys.modules["znni"]), f"{block}: znni.{name}"
    else:
        for words in commands(block):
            check_understood(words, block)


MACHINES = SITE / "how-to" / "several-machines.md"


def slurm_script() -> str:
    (script,) = (block.code for block in blocks_of(MACHINES) if "#SBATCH" in block.code)
    return script


def indexed_job() -> dict[str, Any]:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", MACHINES.read_text(), re.MULTILINE | re.DOTALL)
    job: dict[str, Any] = YAML(typ="safe").load(text)
    return job


def test_the_indexed_job_is_one() -> None:
    job = indexed_job()
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["command"][2].endswith(f'"$JOB_COMPLETION_INDEX/{spec["completions"]}"')
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_scripts_for_several_machines_compute_all_parts(folder: Path, kind: str) -> None:
    if kind == "slurm":
        parts, command = 2, ["bash", "-c", slurm_script().replace("6GiB", "2GiB")]
    else:
        (container,) = indexed_job()["spec"]["template"]["spec"]["containers"]
        text = container["command"][2].replace("56GiB", "2GiB").replace("/16", "/2")
        parts, command = 2, [*container["command"][:2], text]
    for index in range(parts):
        numbers = {
            "SLURM_ARRAY_TASK_ID": f"{index}",
            "SLURM_ARRAY_TASK_COUNT": f"{parts}",
            "JOB_COMPLETION_INDEX": f"{index}",
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, **numbers, "PATH": path}
        subprocess.run(command, cwd=folder, env=environment, check=True)
    assert znni("finish", "parts.zarr").code == 0


@pytest.mark.usefixtures("folder")
def test_a_wrong_command_of_a_document_is_found() -> None:
    def said(code: str) -> CodeBlock:
        return CodeBlock(ROOT / "README.md", 1, "bash", code)

    for wrong in ("znni plan --nett a", "znni plan --net a --volume 1,1,1 --device tpu"):
        with pytest.raises(pytest.fail.Exception, match=r"README\.md:1: "):
            check_understood(wrong.split(), said(wrong))
    with pytest.raises(KeyError):
        check_understood(["znni", "train"], said("znni train"))
    for wrong in ("make nonsense", "pip install '.[nonsense]'", "curl a"):
        with pytest.raises(AssertionError, match=r"README\.md:1"):
            check_understood(shlex.split(wrong), said(wrong))
    with pytest.raises(AssertionError, match=r"README\.md:1"):
        run(said("znni info absent.yaml\n"))


def test_documents_have_blocks_of_both_kinds() -> None:
    assert {block.language for block in BLOCKS if block.runs} == {"bash", "python"}
    fences = sum(
        len(re.findall(r"^ *```(?:bash|python|console|sh)\n", path.read_text(), re.MULTILINE))
        for path in DOCUMENTS
    )
    assert fences == len(BLOCKS)  # none escapes by an indent or another name


def test_documents_name_benchmarks_that_there_are() -> None:
    from bench.__main__ import COMMANDS, PAPER

    known = {*COMMANDS, PAPER}
    copied = [ROOT / name for name in ("CONTRIBUTING.md", "ARCHITECTURE.md", "machines/README.md")]
    for document in [*DOCUMENTS, *copied]:
        named = set(re.findall(r"python -m bench ([a-z][\w-]*)", document.read_text()))
        assert named <= known, document


def test_documents_name_files_that_there_are() -> None:
    places = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*") if ".venv" not in path.parts]
    for document in [ROOT / "ARCHITECTURE.md", *sorted((SITE / "developers").rglob("*.md"))]:
        named = re.findall(r"`([\w/]+\.(?:py|cuh?))\b", document.read_text())
        for name in named:
            assert any(place.endswith(f"/{name}") for place in places), f"{document}: {name}"


# Where the files are that the lists of ARCHITECTURE.md name.
FOLDERS_OF_LISTS = "znni", ".", "znni/engine/backends/cuda"


def test_the_lists_of_one_block_name_code_that_there_is() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().split("## One block, file by file")[1]
    rows = re.findall(r"^(?:\w+ {2,}| *)([\w.]+) {2,}([\w/*]+\.py)", text, flags=re.MULTILINE)
    assert len(rows) > 60
    for name, file in rows:
        there = [path for folder in FOLDERS_OF_LISTS for path in (ROOT / folder).glob(file)]
        code = "".join(path.read_text() for path in there)
        for part in name.split("."):
            known = re.search(rf"(?:def|class) {part}\b|^{part} = ", code, re.MULTILINE)
            assert known or any(path.stem == part for path in there), f"{file}: {name}"


def test_the_readme_has_the_commands_that_a_fresh_machine_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "packaging")
    from fresh_machine import commands_of_readme

    assert commands_of_readme(ROOT) == ["make demo", "make quick", "make test"]


def test_links_of_the_repository_lead_to_files() -> None:
    named = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "*/README.md")
    made_for_the_site = {SITE / "developers/modules.md", SITE / "reference/command-line.md"}
    links = 0
    for document in (path for name in (*named, "docs/**/*.md") for path in ROOT.glob(name)):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", document.read_text()):
            found = Path(os.path.normpath(document.parent / target))
            assert found.exists() or found in made_for_the_site, f"{document}: {target}"
            links += 1
    assert links


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SITE / "generators")


@pytest.mark.usefixtures("generators")
def test_the_tables_of_the_readme_are_made_of_records() -> None:
    from performance import RECORDS
    from performance_tables.readme import readme_table, readme_unets

    text = (ROOT / "README.md").read_text()
    assert readme_table(RECORDS) in text
    assert readme_unets(RECORDS) in text


@pytest.mark.usefixtures("generators")
def test_documents_have_the_tables_of_todays_records() -> None:
    from performance import PAGES_OF_RECORDS, RECORDS, pages

    found = pages(RECORDS)
    for path, text in found.items():
        assert path.read_text() == text, f"{path}: run python docs/generators/performance.py"
    text = "\n".join(text for path, text in found.items() if path.parent == PAGES_OF_RECORDS)
    assert set(re.findall(r"^## (\S+\.json)$", text, re.MULTILINE)) == set(RECORDS)


@pytest.mark.usefixtures("generators")
def test_the_page_of_the_command_line_has_every_command() -> None:
    from command_line_help import command_line_page, commands

    page = command_line_page()
    assert set(commands()) == set(parsers())
    for command, parser in parsers().items():
        assert f"\n## znni {command}\n" in page
        for parameter in parser.params:
            assert all(option in page for option in parameter.opts if option.startswith("--"))


@pytest.mark.usefixtures("generators")
def test_the_page_of_modules_has_every_folder() -> None:
    from module_map import module_map

    page = module_map(ROOT)
    folders = {path.name for path in (ROOT / "znni").iterdir() if (path / "__init__.py").exists()}
    assert folders
    assert all(f"\n## znni/{folder}\n" in page for folder in folders)
    assert "\n## planner\n" in page


@pytest.mark.usefixtures("generators")
def test_links_of_files_lead_to_pages_of_the_site() -> None:
    from repository import COPIED, LINK, page_of

    made = {page: page_of(ROOT, source) for page, source in COPIED.items()}
    known = {str(path.relative_to(SITE)) for path in SITE.rglob("*.md")} | set(made)
    for page, text in made.items():
        for link in LINK.finditer(text):
            if "://" not in link[2]:
                target = os.path.normpath(Path(page).parent / link[2])
                assert target in known, f"{page}: {link[2]}"
