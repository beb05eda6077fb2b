"""Draw for which machines each strategy of the paper is fastest, from ``paper-borders.json``.

It needs the extra ``plot``:

    python docs/generators/strategy_borders.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

sys.path.insert(0, str(Path(__file__).parents[2]))  # for bench, which is not installed

from bench.paper.strategies import STRATEGIES
from bench.record import Row, load

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "bench" / "results" / "paper-borders.json"
PICTURE = ROOT / "docs" / "performance" / "strategy-borders.png"
COLOURS = dict(zip(STRATEGIES, ("#4c72b0", "#dd8452", "#55a868", "#c44e52"), strict=True))


def main() -> None:
    """Draw one map of cores and memory for each link."""
    rows = load(RECORD, "borders").rows
    links = sorted({row["link_gb_per_s"] for row in rows})
    figure, axes = plt.subplots(
        1, len(links), figsize=(9, 4), sharey=True, squeeze=False, layout="constrained"
    )
    for link, axis in zip(links, axes[0], strict=True):
        some = [row for row in rows if row["link_gb_per_s"] == link]
        draw(axis, some)
        axis.set_title(f"link of {link:g} GB/s each way")
    axes[0][0].set_ylabel("cores of the host")
    figure.suptitle(f"{rows[0]['network']}, {rows[0]['gpu']}: seconds of the fastest strategy")
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.savefig(PICTURE, dpi=110)


def draw(axis: plt.Axes, rows: list[Row]) -> None:
    """Draw the fastest strategy for each memory of the GPU and number of cores.

    Args:
        axis: where it is drawn.
        rows: the rows of one link.
    """
    memories = sorted({row["gpu_limit_gib"] for row in rows})
    cores = sorted({row["threads"] for row in rows})
    names = list(COLOURS)
    places = [[0] * len(memories) for _ in cores]
    for row in rows:
        y, x = cores.index(row["threads"]), memories.index(row["gpu_limit_gib"])
        places[y][x] = names.index(row["strategy"])
        axis.text(x, y, f"{row['predicted_seconds']:.0f}", ha="center", va="center", color="white")
    colours = ListedColormap(list(COLOURS.values()))
    axis.imshow(places, colours, vmin=0, vmax=len(names) - 1, origin="lower", aspect="auto")
    axis.set_xticks(range(len(memories)), [f"{memory:g}" for memory in memories])
    axis.set_yticks(range(len(cores)), [str(count) for count in cores])
    axis.set_xlabel("GiB of the GPU")


if __name__ == "__main__":
    main()
