"""Invalid options, extents and arguments give a one-line error with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import pytest
import typer
from command_line import INFER, changed, succeeds, voxels
from command_line import refused_without_trace as refused
from typer.testing import CliRunner

import znni
from znni.cli.panels import PanelCommand
from znni.core.errors import InvalidInput

Out = Annotated[str, typer.Option("-o", "--out")]

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--roi", "0:4"), "--roi 0:4 is not a region; write it as z0:z1,y0:y1,x0:x1"),
        (("--roi", "0:4,a:4,0:4"), "is not a region"),
        (("--roi", "0:4:2,0:4,0:4"), "is not a region"),
        (("--roi", "1:4,2:5,2:99"), "roi 1:4,2:5,2:99 is not within 0:6,2:17,3:19"),
        (("--roi", "-3:4,2:5,3:9"), "is not within"),
        (("--roi", "4:4,2:5,3:9"), "roi 4:4,2:5,3:9 is empty"),
        (("--roi", "4:2,2:5,3:9", "--border", "same"), "roi 4:2,2:5,3:9 is empty"),
        (("--ram", "lots"), "'lots' is not a size of memory; write it as 8GiB or 500MB"),
        (("--ram", "16"), "16 is 16 bytes; did you mean 16GiB?"),
        (("--ram", "-1GiB"), "'-1GiB' is not a size"),
        (("--ram", "8GiB or so"), "'8GiB or so' is not a size"),
        (("--ram", "8,5GiB"), "'8,5GiB' is not a size"),
        (("--ram", "9" * 400 + "GiB"), "is not a size"),
        (("--ram", "0"), "0 bytes of RAM hold nothing"),
        (("--threads", "0"), "0 threads cannot compute; give at least 1"),
        (("--threads", "two"), "'--threads': 'two' is not an integer; see znni infer --help"),
        (
            ("--dtype", "int8"),
            "--dtype is 'int8'; choose one of float32, float16, uint8; did you mean uint8?; see",
        ),
        (("--border", "mirror"), "--border is 'mirror'; choose one of valid, same; see"),
        (("--border", "none"), "--border"),
        (("--pad", "wrap"), "--pad"),
        (("--unknown",), "No such option: --unknown; see znni infer --help"),
        (("--random-weights", "-1"), "-1 is not a seed"),
        (("--random-weights", "1", "--weights", "tiny.npz"), "both"),
        (("--plan", "none.json"), "none.json: cannot be read: No such file or directory; check"),
    ],
)
def test_options(options: tuple[str, ...], said: str) -> None:
    assert said in refused(*INFER, *options)


def test_a_network_that_is_not_there() -> None:
    said = refused(*changed(INFER, "--net", "none.yaml"))
    assert said.startswith("none.yaml: no such network file")


@pytest.mark.parametrize("second", [("--net", "b.yaml"), ("--net=b.yaml",)])
def test_an_option_with_two_values_is_refused(second: tuple[str, ...]) -> None:
    said = refused(*INFER, *second, "--net", "c.yaml")
    assert said == "--net is given twice: tiny.yaml and b.yaml; give it once"


def test_options_given_again_with_their_value_and_flags_given_twice_are_harmless() -> None:
    succeeds(*INFER, "--overwrite", *INFER[2:4], "--overwrite")


def test_two_values_under_two_names_of_an_option_are_refused() -> None:
    app = typer.Typer()

    @app.command(cls=PanelCommand)
    def both(more: Annotated[list[str], typer.Option("-m", "--more")], out: Out) -> None:
        typer.echo([*more, out])

    ran = CliRunner().invoke(app, ["-m", "1", "--more", "2", "-oa"])
    assert ran.output == "['1', '2', 'a']\n"
    with pytest.raises(InvalidInput, match="-o/--out is given twice: a and b; give it once"):
        app(["-m", "1", "-oa", "--out", "b"], standalone_mode=False)


def test_commands_that_lack_something() -> None:
    assert "Commands" in succeeds()
    assert refused("nonesuch").endswith("; see znni --help")
    for command in ("infer", "plan", "export"):
        said = refused(command)
        assert said.startswith("Missing ")
        assert said.endswith(f"; see znni {command} --help")


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ("5,6", "has 2 extents; give three whole numbers of 1 or more with commas"),
        ("5", "has 1 extent; give three"),
        ("0,6,7", "(0, 6, 7)"),
        ("²,3,4", "no such file"),
        ("1e3,5,5", "no such file"),
        ("5 5 5", "--volume 5 5 5 is no file, and has no extents; give a volume, or three whole"),
        ("5,-5,5", "or three whole numbers of 1 or more with commas between: Z,Y,X"),
        ("(5, 5, 5)", "or three whole numbers of 1 or more"),
        ("5.5,5,5", "or three whole numbers of 1 or more"),
        ("2026/11", "no such file"),
        ("5,5,5", "field of view"),
        ("", "is a folder"),
    ],
)
def test_extents_to_plan_for(volume: str, said: str) -> None:
    assert said in refused("plan", "--net", "tiny.yaml", "--volume", volume)


def test_info() -> None:
    assert "no such file" in refused("info", "none.h5")
    assert "no such network file" in refused("info", "none.yaml")
    assert "reads no other format with the ending .npz; convert" in refused("info", "tiny.npz")
    assert "no dataset 'rat'" in refused("info", "volume.h5:rat")


def test_a_size_without_its_unit_is_of_bytes() -> None:
    said = refused(*INFER, "--ram", "2097152", code=3)
    assert "needs 512 MiB" in said
    assert "and 2 MiB are allowed" in said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda **options: znni.infer(voxels(), "tiny.yaml", np.zeros(1), **options),
            r"znni.infer() got an unexpected keyword argument 'bordr'. Did you mean 'border'?",
        ),
        (lambda **options: znni.plan("tiny.yaml", (9, 9, 9), **options), "znni.plan() got an "),
        (lambda **options: znni.search("tiny.yaml", (9, 9, 9), **options), "znni.search() got an "),
        (lambda **options: znni.Inferer("tiny.yaml", **options), "znni.Inferer() got an "),
        (znni.SlidingWindowInferer, "znni.SlidingWindowInferer() "),
    ],
)
def test_keywords_that_there_are_not(call: Callable[..., object], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(bordr="same")
    assert str(caught.value).startswith(said)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'nonesuch'$"):
        call(nonesuch=1)
