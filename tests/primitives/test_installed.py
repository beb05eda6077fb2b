"""Another package brings primitives: found, planned, run and verified; its faults name it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import INFER, read_main, refused, rewrite, succeeds
from installed_packages import PLANE_PRODUCTS, install, write_metadata
from paths import ROOT
from tiny_network import close, whole

from znni.core.errors import InvalidInput
from znni.core.packages import PRIMITIVES, offers
from znni.inference import planning
from znni.inference.machine_text import describe_machine
from znni.machine.machine import Device, Machine
from znni.primitives.catalogue import catalogue, families

HOST = Device("cpu", "host", 2**34, 2, 1e11, 1e10)
GPU = Device("gpu", "gpu", 2**35, 1, 6e13, 4e12, capability=90)
NAME = "plane_products"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on Python's path for packages; what is imported from it is forgotten."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def plane_products(site: Path) -> Path:
    """The example is installed."""
    install(PLANE_PRODUCTS, site)
    return site


def bring(site: Path, code: str, name: str = NAME, version: str = "1.0") -> None:
    """Install a package whose module has this code."""
    write_metadata(site, "bringer", (PRIMITIVES, {name: "bringer:primitives"}), version)
    (site / "bringer.py").write_text(code)


@pytest.mark.usefixtures("plane_products")
def test_it_is_found_on_the_devices_that_it_is_for() -> None:
    found = catalogue(Machine(HOST, (GPU,)))
    assert found[NAME].device == HOST
    assert list(found)[-1] == NAME
    assert NAME not in catalogue(Machine(HOST, (GPU,)), "gpu")
    of_families = families(found)
    assert {name for name, its in of_families.items() if NAME in its} == {NAME}
    assert f"  {NAME:<26}{NAME}, of package {NAME} 1.0\n" in describe_machine(Machine(HOST))


@pytest.mark.usefixtures("plane_products")
def test_nothing_is_imported_before_it_is_looked_up() -> None:
    found = catalogue(Machine(HOST))
    assert found["direct"].name == "direct"
    assert NAME not in sys.modules
    assert found[NAME].name == NAME
    assert NAME in sys.modules


def only_it_convolves(machine: Machine) -> dict[str, object]:
    found = catalogue(machine, "cpu")
    return {name: it for name, it in found.items() if "pooling" in name or name == NAME}


@pytest.fixture
def saved_plan(plane_products: Path, small_case: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``plan.json``, a plan for the small case with the example as its only convolution."""
    assert plane_products.is_relative_to(small_case)
    rewrite("tiny.yaml", "activation: sigmoid", "activation: identity")
    with monkeypatch.context() as patch:
        patch.setattr(planning, "catalogue", only_it_convolves)
        table = succeeds(
            *("plan", "--net", "tiny.yaml", "--volume", "volume.h5"),
            *("--device", "cpu", "--out", "plan.json"),
        )
    assert table.count(f" {NAME} ") == 2
    return small_case / "plan.json"


@pytest.mark.usefixtures("saved_plan")
def test_it_is_planned_run_and_verified() -> None:
    succeeds(*INFER, "--plan", "plan.json")
    assert close(read_main("out.h5"), whole())
    assert "out.h5: agree; " in succeeds("verify", "out.h5")


@pytest.mark.usefixtures("plane_products", "small_case")
def test_plans_are_made_as_before_where_others_are_faster() -> None:
    search = planning.search("tiny.yaml", (7, 20, 23), device="cpu", costs="built-in")
    assert NAME in search.catalogue
    assert search.fastest()[0].steps


def test_a_plan_whose_package_is_gone_is_refused(
    saved_plan: Path, plane_products: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it != str(plane_products)])
    said = refused(*INFER, "--plan", saved_plan)
    assert said == (
        f"the plan runs layer conv1 by primitive '{NAME}', which this machine does not have; if an "
        f"installed package brought it, install that again, or plan again with "
        f"znni plan --out; out.h5 was not made"
    )
    assert not Path("out.h5").exists()


@pytest.mark.slow
def test_the_tests_of_all_primitives_pass(plane_products: Path) -> None:
    """Accuracy, strides, outputs in place, tasks and, above all, the declared memory."""
    tests = ROOT / "tests" / "primitives"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NAME),
            *(tests / f"test_{it}.py" for it in ("primitives", "primitive_memory")),
        ],
        env=os.environ | {"PYTHONPATH": f"{plane_products}{os.pathsep}{ROOT}"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


BROKEN = {
    "raise OSError('no library')": "cannot be imported: OSError: no library",
    "": "cannot be imported: AttributeError: module 'bringer' has no attribute 'primitives'",
    "primitives = 3": "gives no primitives of a device: TypeError: 'int' object is not callable",
    "def primitives(device): return [7]": (
        "7 is no primitive: it has no name, device, accuracy, version, out_shape, cost, build"
    ),
    "def primitives(device): return [another]": (
        "gives no primitives of a device: NameError: name 'another' is not defined"
    ),
}
CHANGED = """
from dataclasses import replace
from znni.primitives.cpu.direct.primitive import Direct

def primitives(device):
    return [Direct({device}, name={name!r})]
"""


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [
        *((code, NAME, reason) for code, reason in BROKEN.items()),
        (CHANGED.format(device="device", name="direct"), "direct",
         "another primitive is named direct, too"),
        (CHANGED.format(device="device", name="other"), NAME,
         "the name of primitive 'other' does not begin with plane_products"),
        (CHANGED.format(device="replace(device, threads=99)", name=NAME), NAME,
         "primitive plane_products is for another device than was asked"),
    ],
)  # fmt: skip
def test_a_fault_names_the_package_and_the_remedy(
    site: Path, code: str, name: str, reason: str
) -> None:
    bring(site, code, name)
    with pytest.raises(InvalidInput) as found:
        list(catalogue(Machine(HOST)))
    assert str(found.value) == (
        f"package bringer 1.0, entry point {name} = 'bringer:primitives': {reason}; install "
        f"another version of it, or remove it with pip uninstall bringer"
    )


def test_a_fault_is_one_line_of_a_command_and_disturbs_no_saved_plan(
    site: Path, small_case: Path
) -> None:
    assert site.is_relative_to(small_case)
    succeeds("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    bring(site, "import no_such_library")
    sys.path.append(str(site / "."))  # packages are looked for once on a path
    try:
        said = refused(*INFER)
        assert said.startswith("package bringer 1.0, entry point plane_products = ")
        assert "no_such_library" in said
        succeeds(*INFER, "--plan", "plan.json")
    finally:
        sys.path.pop()


def test_no_package_takes_the_place_of_a_primitive(site: Path) -> None:
    bring(site, CHANGED.format(device="device", name="fft_tiled_20"), "fft_tiled_20")
    own = catalogue(Machine(HOST))["fft_tiled_20"]
    assert type(own).__module__ == "znni.primitives.cpu.fft_tiled.primitive"


def key_of(site: Path, change: Callable[[Path], object]) -> str | None:
    change(site)
    packages_changed()
    return catalogue(Machine(HOST)).cache_key


def packages_changed() -> None:
    """Let packages be looked for again, as a new process does."""
    for cached in ("_entry_points_in", "_offers_in", "state_of_source"):
        offers.__globals__[cached].cache_clear()


def test_kept_plans_are_told_apart_by_packages_their_versions_and_their_code(site: Path) -> None:
    def to_version_2(site: Path) -> None:
        (site / "bringer-1.0.dist-info").rename(site / "bringer-2.0.dist-info")

    def edit(site: Path) -> None:
        (site / "bringer.py").write_text("other = 1")

    def to_a_folder(site: Path) -> None:
        (site / "bringer.py").unlink()
        (site / "bringer").mkdir()
        (site / "bringer" / "__init__.py").touch()

    def edit_within(site: Path) -> None:
        (site / "bringer" / "more.py").write_text("other = 2")

    def remove_code(site: Path) -> None:
        (site / "bringer").rename(site / "gone")

    changes = (
        lambda _: None, lambda site: bring(site, ""), to_version_2, edit, to_a_folder, edit_within,
        remove_code,
    )  # fmt: skip
    keys = [key_of(site, change) for change in changes]
    packages_changed()
    assert len(set(keys)) == len(changes)


def test_the_first_of_two_installations_counts(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(site, "", version="1.0")
    (site / "first").mkdir()
    bring(site / "first", "", version="0.9")
    monkeypatch.syspath_prepend(site / "first")
    assert [it.version for it in offers(PRIMITIVES) if it.package == "bringer"] == ["0.9"]
