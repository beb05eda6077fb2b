"""``machines/README.md`` beside the ZNNi paper: its arithmetic, and its figures from records."""

from __future__ import annotations

import re

import pytest
from paths import MACHINES, NETWORKS, ROOT

from bench.paper.planes import CUDNN, FBFFT
from bench.paper.published import NETWORKS as NAMES
from bench.paper.published import published, published_primitive
from bench.record import Record, Row, load
from znni.core.shapes import Vec3
from znni.network.geometry import input_box
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.network_file import load_network

TEXT = (MACHINES / "README.md").read_text()
RESULTS = ROOT / "bench" / "results"
HOST, GPU = "4 x Intel Xeon E7-8890 v3", "GeForce GTX Titan X"
BOTH = f"{HOST} + {GPU}"


def row_of(title: str) -> list[str]:
    """Return the cells after the title of a table's row."""
    (line,) = (line for line in TEXT.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("| ").split("|")][1:]


def fragments(network: Network, extent: int) -> int | None:
    """Return the extent of the last layer's fragments; None if a pooling cannot cut its input.

    By the paper, each pooling needs an extent that is a multiple of its window less one.
    """
    for layer in network.layers:
        if isinstance(layer, Conv):
            extent -= layer.kernel.z - 1
        elif isinstance(layer, Pool):
            if (extent + 1) % layer.window.z:
                return None
            extent //= layer.window.z
    return extent


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_the_paper_are_one_voxel_too_small(name: str) -> None:
    at = NAMES.index(name)
    network = load_network(NETWORKS / f"{name}.yaml")
    view, pooling = network.field_of_view.z, network.total_pooling.z
    m, ours, paper = (
        int(row_of(title)[at].removesuffix("³"))
        for title in ("m", "field of view - 1 + m P", "Table IV")
    )
    assert int(row_of("field of view")[at]) == view
    assert int(row_of("total pooling P")[at]) == pooling
    assert ours == view - 1 + m * pooling == input_box(network, Vec3.of(m * pooling)).size.z
    assert fragments(network, ours) == m
    assert fragments(network, paper) is None
    assert paper == ours - 1


def rates(file: str) -> dict[tuple[str, str], Row]:
    return {(row["network"], row["processor"]): row for row in load(RESULTS / file).rows}


def millions(rate: float | None) -> str:
    assert rate is not None
    return f"{rate / 1e6:.2f} M" if rate >= 1e5 else f"{rate / 1e6:.3f} M"


@pytest.mark.parametrize("name", NAMES)
def test_rates_beside_the_paper_are_those_of_the_records(name: str) -> None:
    everything, families = (rates(f"machine-plans{part}.json") for part in ("", "-paper-families"))

    def planned(found: dict[tuple[str, str], Row], processor: str) -> str:
        return millions(found[name, processor]["predicted_voxels_per_s"])

    alone = (
        *(planned(everything, HOST), planned(families, HOST)),
        *(millions(published(name, "ZNNi CPU-only")), planned(everything, GPU)),
        millions(published(name, "ZNNi GPU-only")),
    )
    together = (
        *(planned(everything, BOTH), planned(families, BOTH)),
        millions(published(name, "ZNNi CPU-GPU")),
    )
    for cells in (alone, together):
        assert f"| {name} | {' | '.join(cells)} |\n" in TEXT


@pytest.mark.parametrize("name", NAMES)
def test_input_patches_on_the_gpu_are_those_of_the_record(name: str) -> None:
    network = load_network(NETWORKS / f"{name}.yaml")
    patch = rates("machine-plans.json")[name, GPU]["patch"]
    extents = Vec3(*(int(extent) for extent in re.findall(r"\d+", patch)))
    here = row_of("input patch here")[NAMES.index(name)]
    assert here == str(input_box(network, extents).size)


def test_layers_of_table_iv_have_the_kinds_of_the_paper() -> None:
    layers = "conv1", "conv2", "conv3", "conv7", "pool1"
    kinds = {name: [published_primitive(name, layer) for layer in layers] for name in NAMES}
    cudnn, fft, pool = "cuDNN", "pruned FFT", "all fragments"
    assert kinds == {
        "n337": [cudnn, cudnn, cudnn, cudnn, pool],
        "n537": [cudnn, fft, cudnn, cudnn, pool],
        "n726": [cudnn, fft, fft, fft, pool],
        "n926": [cudnn, cudnn, fft, fft, pool],
    }


def test_measured_shares_of_a_layer_take_the_place_of_predicted_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "generators")
    from paper_figures import shares_of_devices, side_by_side

    about = {"case": "2 cores and a GPU: kernel", "items": 4, "planned_on_host": 1}
    rows = [
        about | {"items_on_host": items, "predicted_gain": 1 / (items + 1)} for items in range(5)
    ]
    measured = [row | {"gain": 2 * row["predicted_gain"]} for row in rows]
    circumstances = {"machine": {"processor": "CPU", "threads": 2}, "ceilings": [], "date": "today"}
    records = {
        f"paper-side-by-side{part}.json": Record("evaluations", found, circumstances)
        for part, found in (("-a", measured), ("-z-predicted", rows))
    }
    assert shares_of_devices(records) == {about["case"]: measured}
    assert "| 1 of 4: 1.00 (0.50) | 0 of 4: 2.00 (1.00) | 1.00 (0.50) |" in side_by_side(records)


def test_measured_speeds_of_chosen_shares_are_beside_predicted_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "generators")
    from paper_figures import STRATEGIES, host_ram

    rows = [
        {"network": "n337", "strategy": "GPU + host RAM", "gpu_limit_gib": limit}
        | {"predicted_voxels_per_s": 1e6 * limit}
        for limit in (4.0, 12.0)
    ]
    measured = [row | {"voxels_per_s": 2e6} for row in rows]
    circumstances = {"machine": {"processor": "CPU", "threads": 2}, "ceilings": [], "date": "today"}
    names = *STRATEGIES, "strategies-h200-together.json", "strategies-h200-host-ram-predicted.json"
    records = {name: Record("strategies", rows, circumstances) for name in names}
    assert "| n337 | 4.0 | 4.0 | 12.0 | 12.0 |" in host_ram(records)
    records["strategies-h200-host-ram.json"] = Record("strategies", measured, circumstances)
    assert "| n337 | 4.0 | 4.0 (2.0) | 12.0 | 12.0 (2.0) |" in host_ram(records)
    assert "*Predicted, and in brackets measured, on CPU" in host_ram(records)


def test_layers_of_planes_are_told_for_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "generators")
    from paper_numbers import layers_of_fbfft, shares_of_peak

    def record(baseline: str, gains: list[float], ceilings: Row) -> Record:
        rows = [
            {"figure": f"{FBFFT}; {CUDNN}", "case": str(gain)} | row
            for gain in gains
            for row in (
                {"family": baseline, "gain": 1.0, "share_of_peak": 0.1 * gain},
                {"family": "tiled FFT", "gain": gain, "share_of_peak": 0.1 * gain * gain},
            )
        ]
        circumstances = {"machine": {"processor": "CPU", "threads": 8}, "ceilings": [ceilings]}
        return Record("evaluations", rows, circumstances)

    records = {
        "paper-planes-1-core.json": record("direct", [2.0, 3.0], {"threads": 1}),
        "paper-planes-a-gpu.json": record("cuDNN", [1.5, 4.0], {"device": "A GPU"}),
    }
    assert layers_of_fbfft(records) == (
        "tiled FFT: 2.0x to 3.0x of direct convolution (CPU, 1 thread), "
        "1.5x to 4.0x of cuDNN (A GPU)"
    )
    assert shares_of_peak(records) == (
        "direct 20% to 30% (CPU, 1 thread), cuDNN 15% to 40% (A GPU)"
    )
