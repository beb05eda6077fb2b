"""Tests of output pages in a real browser; skipped if there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import read_main, succeeds, voxels
from pages import picture, read_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = [
    pytest.mark.usefixtures("fake_primitives", "small_output"),
    pytest.mark.skipif(not BROWSER, reason="needs Chromium or Chrome; there is none here"),
]


def browse(*options: str, at: str, page: str = "out.h5.html") -> str:
    """Open a page in a headless browser, and return the page as the browser then has it."""
    address = f"{Path(page).absolute().as_uri()}#{at}"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=profile"]
    size = ["--window-size=1200,900", "--force-device-scale-factor=1"]
    done = subprocess.run(
        [*command, *size, *options, address],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


def test_a_browser_shows_the_values_at_a_place() -> None:
    succeeds("view", "volume.h5", "out.h5")
    for (z, y, x), feature in (((0, 2, 3), 0), ((4, 10, 18), 1)):
        page = browse(
            "--dump-dom", "--enable-logging=stderr", at=f"z={z}&y={y}&x={x}&map={feature}"
        )
        assert "<title>out.h5 over volume.h5</title>" in page
        assert re.findall("<output>([^<]*)</output>", page) == [str(z), str(y), str(x), "70 %"]
        given = re.search('id="input-value">([^<]*)<', page)
        made = re.search('id="output-value">([^<]*)<', page)
        assert given
        assert made
        low, high = (read_page("out.h5.html")[0]["input"][end] for end in ("low", "high"))
        value = voxels()[z, y, x]  # a whole number, unless it is beyond the shades
        end = "≤ " if value < low else "≥ " if value > high else ""
        assert given[1] == f"{end}{round(value.clip(low, high))}"
        value = read_main("out.h5")[feature, z, y - 2, x - 3]
        assert float(made[1]) == pytest.approx(value, abs=0.005)


@pytest.mark.slow
def test_a_browser_shows_what_colours_mean() -> None:
    logits = np.linspace(-8, 12, voxels().size, dtype=np.float32).reshape(voxels().shape)
    np.save("logits.npy", logits)
    succeeds("view", "volume.h5", "logits.npy")
    succeeds("view", "volume.h5", "out.h5")
    legend = re.compile(
        r'<div id="legend"[^>]*?( hidden="")?><span>([^<]*)</span><i style="background: '
        r'linear-gradient\(to right, rgb\((.*?)\), rgb\((.*?)\)\);"></i><span>([^<]*)</span>'
    )
    seen = {}
    for page in ("logits.npy.html", "out.h5.html"):
        for show in ("overlay", "output", "input"):
            dom = browse("--dump-dom", at=f"z=3&y=9&x=11&opacity=50&show={show}", page=page)
            (seen[page, show],) = legend.findall(dom)
    place = "z=6&y=19&x=22"  # where the largest logit is
    shots = {}
    for show, at in (("input", place), ("overlay", place), ("input", "z=0&y=0&x=0")):
        browse("--screenshot=shot.png", at=f"{at}&opacity=50&show={show}", page="logits.npy.html")
        shots[show, at] = picture(Path("shot.png").read_bytes()).astype(int)
    browse(
        "--screenshot=shot.png", at="z=0&y=0&x=0&opacity=50&show=overlay", page="logits.npy.html"
    )
    low = picture(Path("shot.png").read_bytes()).astype(int)[:, :600]
    panel = low[100:500, 30:400]  # the plane of the smallest logits, which are below 0
    plain = shots["input", "z=0&y=0&x=0"][100:500, 30:400]
    np.testing.assert_array_equal(panel, plain)
    assert (shots["overlay", place] != shots["input", place])[100:500, 30:400].any()
    overlay = ("96, 96, 96", "168, 118, 78")
    assert seen["logits.npy.html", "overlay"] == ("", "≤ 0", *overlay, "12")
    black_to_white = ("0, 0, 0", "255, 255, 255")
    assert seen["logits.npy.html", "output"] == ("", "≤ -7.9", *black_to_white, "12")
    assert seen["logits.npy.html", "input"][0] == ' hidden=""'
    assert seen["out.h5.html", "overlay"] == ("", "0", *overlay, "1")


@pytest.mark.slow
def test_a_browser_draws_sections() -> None:
    succeeds("view", "volume.h5", "out.h5")
    _, (given, made, _) = read_page("out.h5.html")
    shots = {}
    for show in ("input", "output", "overlay"):
        at = f"z=3&y=9&x=11&opacity=50&show={show}"
        browse("--screenshot=shot.png", at=at)
        shots[show] = picture(Path("shot.png").read_bytes()).astype(int)
    top, left = np.argwhere((shots["input"] != shots["output"]).any(axis=2)).min(axis=0)
    found = np.argwhere((shots["input"][top + 5, left:, :3] == (20, 23, 26)).all(axis=1))
    scale = found.min() / given.shape[2]  # up to the ground beside the first section
    assert scale > 10
    for y, x in ((5, 3), (12, 14), (14, 0)):  # places outside the caption and the cross
        row, column = int(top + (y + 0.5) * scale), int(left + (x + 0.5) * scale)
        grey, value = int(given[3, y, x]), int(made[3, y, x])
        assert shots["input"][row, column, 0] == pytest.approx(grey, abs=1)
        assert shots["output"][row, column, 2] == pytest.approx(value, abs=1)
        share = 0.5 * value / 255
        wanted = [grey + share * (colour - grey) for colour in (240, 140, 60)]
        assert shots["overlay"][row, column, :3] == pytest.approx(wanted, abs=1.5)


@pytest.mark.slow
def test_a_browser_shows_labels_in_colours_from_a_pyramid(monkeypatch: pytest.MonkeyPatch) -> None:
    zarr = pytest.importorskip("zarr")
    monkeypatch.setattr("znni.volumes.formats.zarr.pyramid.SMALLEST", 8)
    monkeypatch.setattr("znni.inference.viewing.region.EXTENT", 8)
    text = Path("tiny.yaml").read_text()
    Path("tiny.yaml").write_text(f"{text}labels: {{nothing: 0, cell: 700}}\n")
    command = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.zarr")
    succeeds(*command, "--labels", "--pyramid")
    said = succeeds("view", "volume.h5", "out.zarr")
    assert "2:17,3:19, one in 1x2x2\n" in said
    assert "resolution" not in said  # those coarser are too coarse along z
    labels = zarr.open("out.zarr/0", mode="r")[0, :, ::2, ::2]
    data, (given, _) = read_page("out.zarr.html")
    place: dict[int, tuple[int, int, int]] = {}
    for label in (0, 700):  # away from caption and cross, which is in a corner
        z, y, x = next(at for at in np.argwhere(labels == label).tolist() if min(at[1:]) > 4)
        place[label] = z, y, x
        address = f"z={z}&y={2 + 2 * y}&x={3 + 2 * x}&map=0"
        page = browse("--dump-dom", "--enable-logging=stderr", at=address, page="out.zarr.html")
        name = {0: "nothing", 700: "cell"}[label]
        assert f'id="output-value">{label} {name}<' in page
    listed = re.findall('<li style="--colour: rgb\\(([0-9 ]+)\\);">([^<]*)</li>', page)
    colour = data["maps"][0]["colours"][1]
    assert listed == [("0 0 0", "0 nothing"), (" ".join(map(str, colour)), "700 cell")]
    for label, (z, y, x) in place.items():
        shots = {}
        for show in ("input", "output", "overlay"):
            at = f"z={z}&y=2&x=3&opacity=50&show={show}"
            browse("--screenshot=shot.png", at=at, page="out.zarr.html")
            shots[show] = picture(Path("shot.png").read_bytes()).astype(int)
        top, left = np.argwhere((shots["input"] != shots["output"]).any(axis=2)).min(axis=0)
        found = np.argwhere((shots["input"][top + 5, left:, :3] == (20, 23, 26)).all(axis=1))
        scale = found.min() / given.shape[2]
        row, column = int(top + (y + 0.5) * scale), int(left + (x + 0.5) * scale)
        grey = [int(given[z, y, x])] * 3
        alone = [0, 0, 0] if label == 0 else colour
        over = grey if label == 0 else [(a + b) / 2 for a, b in zip(grey, colour, strict=True)]
        for show, wanted in {"input": grey, "output": alone, "overlay": over}.items():
            assert shots[show][row, column, :3] == pytest.approx(wanted, abs=1.5), show
