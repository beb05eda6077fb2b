"""Parts that several pages' tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bench.record import Record, Row
from bench.table import markdown

NETWORKS = ("n337", "n537", "n726", "n926")
UNETS = {
    "unet3d": "UNet3D",
    "nnunet": "nnU-Net with batch norm",
    "rsunet": "residual symmetric U-Net",
    "valid-unet": "valid U-Net",
}

# U-Nets on one window of a GPU, of 192^3 (valid U-Net 204^3).
GPU_UNETS_AT_192 = "gpu-unets-h200-192.json"

Records = Mapping[str, Record]
Line = dict[str, str]  # cells of a table by their titles


def caption(records: Records, names: Iterable[str], verb: str = "Measured") -> str:
    """Return the machines, dates and files of some records, in a line."""
    found: dict[str, None] = {}
    dates, files = [], []
    for name in names:
        about = records[name].about
        machine = about["machine"]
        gpus = [ceiling["device"] for ceiling in about["ceilings"] if "device" in ceiling]
        place = f"{machine['processor'].strip()}, {machine['threads']} threads"
        found[", ".join([*gpus[:1], place])] = None
        dates.append(str(about["date"])[:10])
        files.append(f"`{name}`")
    days = " to ".join(dict.fromkeys((min(dates), max(dates))))
    return f"*{verb} on {'; '.join(found)}, {days} ({', '.join(files)}).*"


def scan_table(records: Records, names: Sequence[str]) -> str:
    """Return whole scans, from the file to the labels, beside nnU-Net's command."""
    lines = []
    for name in names:
        ours, *peers = records[name].rows
        line = {"networks": str(ours["networks"]), "classes": str(ours["classes"])}
        line["znni"] = _scan(ours)
        first = f", {ours['first_peak_gib']:.1f} GiB" if "first_peak_gib" in ours else ""
        line["znni, first run"] = f"{ours['first_seconds']:.0f} s{first}"
        for peer in peers:
            line[str(peer["name"])] = f"{_scan(peer)} ({peer['seconds'] / ours['seconds']:.1f}x)"
        lines.append(line)
    return captioned(records, names, lines)


def _scan(row: Row) -> str:
    """Return the seconds of a scan, and the peak memory."""
    return f"{row['seconds']:.0f} s, {row['peak_gib']:.1f} GiB"


def about_network(ours: Row) -> Line:
    """Return the columns that our rows have on a CPU and on a GPU."""
    return {
        "network": str(ours["network"]),
        "patch": str(ours["patch"]),
        "znni": as_rate(ours),
        "predicted": f"{ours['predicted_voxels_per_s']:,.0f}",
        "error": f"{ours['error']:.0e}",
    }


def rows_by_name(rows: Iterable[Row], network: str) -> dict[str, Row]:
    """Return the rows of a network by their contestants."""
    return {str(row["name"]): row for row in rows if row["network"] == network}


def our_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that are not PyTorch's."""
    return [row for row in rows if not str(row["name"]).startswith("torch")]


def torch_rows(rows: Iterable[Row], kind: str) -> list[Row]:
    """Return the rows of PyTorch with numbers of some kind."""
    return [row for row in rows if str(row["name"]).startswith(f"torch_{kind}")]


def speed_of(row: Row) -> float:
    """Return the voxels per second of a row."""
    return float(row["voxels_per_s"])


def as_rate(row: Row) -> str:
    """Return the voxels per second of a row as text."""
    return f"{row['voxels_per_s']:,.0f}"


def as_millions(row: Row) -> str:
    """Return the millions of voxels per second of a row as text."""
    millions = row["voxels_per_s"] / 1e6
    return f"{millions:.1f} M" if millions >= 10 else f"{millions:.2g} M"


def gain_over(ours: Row, peer: Row) -> str:
    """Return how many times as fast as a peer a row of ours is, as text."""
    return as_times(ours["voxels_per_s"] / peer["voxels_per_s"])


def as_times(gain: float) -> str:
    """Return a factor as text."""
    return f"{gain:.0f}x" if gain >= 10 else f"{gain:.1f}x"


def beside_ours(peer: Row, ours: Row, form: Callable[[Row], str] = as_rate) -> str:
    """Return a peer's speed, and how many times as fast ours is."""
    return f"{form(peer)} ({gain_over(ours, peer)})"


def captioned(records: Records, names: Iterable[str], lines: Sequence[Line]) -> str:
    """Return a table with the caption of its records."""
    return f"{markdown(lines)}\n\n{caption(records, names)}"
