"""Lists in documents have every item: primitives, benchmarks, errors, extras, files and names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable

import pytest
from paths import ROOT
from ruamel.yaml import YAML

import znni
from bench.__main__ import COMMANDS
from znni.core import errors, memory_errors
from znni.core.errors import ZnniError
from znni.core.processors import Processors
from znni.machine.machine_file import load_machine
from znni.primitives.catalogue import catalogue

KERNELS = "docs/developers/cpu-kernels.md", "docs/developers/gpu-kernels/index.md"
FOR_DEVELOPERS = {"test", "docs", "train", "peers"}


def missing(names: Iterable[str], document: str) -> list[str]:
    """Return the names that a document does not have in code, nor by their beginning and dots."""
    text = (ROOT / document).read_text()
    words = [word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split()]
    beginnings = tuple(word[:-3] for word in words if re.fullmatch(r"\w+\.\.\.", word))
    return [it for it in names if it not in words and not it.startswith(beginnings)]


def family(primitive: str) -> str:
    """Return a primitive's name without its tile, its number format and other variants."""
    variants = r"_(\d[\dx]*|transient|workspace|float32|float16|bfloat16|tf32)"
    return re.sub(rf"({variants})+$", "", primitive)


def test_a_missing_name_is_found() -> None:
    assert missing(["phases", "infer"], "bench/README.md") == ["infer"]
    assert missing(["gpu_packed_x", "gpu_x"], KERNELS[1]) == ["gpu_x"]
    assert family("gpu_fft_tiled_16x20x32_float16") == "gpu_fft_tiled"


@pytest.mark.parametrize(("processors", "page"), [("cpu", KERNELS[0]), ("gpu", KERNELS[1])])
def test_pages_on_kernels_have_every_primitive(processors: Processors, page: str) -> None:
    machine = load_machine(ROOT / "machines" / "h200-node.yaml")
    families = {family(name) for name in catalogue(machine, processors)}
    assert not missing(sorted(families), page)


def test_the_benchmarks_are_all_listed() -> None:
    assert not missing(COMMANDS, "bench/README.md")


def test_the_errors_are_all_listed() -> None:
    kinds = [it for it in (vars(errors) | vars(memory_errors)).values() if isinstance(it, type)]
    names = {it.__name__ for it in kinds if issubclass(it, ZnniError)} - {"ZnniError"}
    assert not missing(names, "docs/reference/exceptions.md")


def test_the_variables_and_the_parts_of_the_cache_are_all_listed() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "znni").rglob("*.py"))
    variables = set(re.findall(r'"(ZNNI_[A-Z_]*[A-Z])"', code))
    parts = set(re.findall(r'(?:user_cache\(\) / |ValueCache(?:\[.*\])?\()"([\w.]+)"', code))
    assert {"ZNNI_PLANS"} < variables
    assert {"plans", "costs.sqlite", "networks"} < parts
    names = variables | {part if "." in part else f"{part}/" for part in parts}
    assert not missing(names, "docs/reference/environment.md")


def test_the_extras_are_all_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - FOR_DEVELOPERS
    assert not missing(extras, "docs/index.md")


def test_the_line_without_pyfftw_has_all_other_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]} - {"pyfftw"}
    (line,) = re.findall(r"^pip install (.* numba .*)$", (ROOT / "docs/index.md").read_text(), re.M)
    assert {re.split(r"[<>=]", each.strip("'"))[0] for each in line.split()} == wanted


@pytest.mark.parametrize(("folder", "suffix"), [("machines", ""), ("networks", ".yaml")])
def test_the_files_of_a_folder_are_all_listed(folder: str, suffix: str) -> None:
    names = [f"{path.stem}{suffix}" for path in (ROOT / folder).glob("*.yaml")]
    assert names
    assert not missing(names, f"{folder}/README.md")


def test_the_public_names_are_all_described() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert set(re.findall(r"^::: znni\.(\w+)$", page, re.MULTILINE)) == set(znni.__all__)


def test_the_readme_cites_what_the_citation_file_has() -> None:
    references = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text())["references"]
    known = {
        (it["authors"][0]["family-names"], " ".join(it["title"].split()), it["year"] % 100)
        for it in references
    }
    text = " ".join((ROOT / "README.md").read_text().partition("\n## Citation\n")[2].split())
    cited = re.findall(r"([A-Z]\w+)(?: et al\.|, \w+ and \w+), \*([^*]+)\*, (?:SC'|20)(\d\d)", text)
    assert len(cited) == 5
    assert {(author, title, int(year)) for author, title, year in cited} <= known
