"""``znni networks``: list the networks that come with znni."""

from __future__ import annotations

import typer

# Addresses of pictures of networks' outputs.
PICTURES = {"cells-unet": "https://github.com/znni/znni/blob/main/networks/cells-unet.png"}

WITHOUT_WEIGHTS = "a benchmark without weights: give --random-weights 0"


def networks() -> None:
    """List the networks that come with znni, which --net takes by name."""
    from znni.core.text import counted
    from znni.network.network_file import shipped_networks

    for name, network in shipped_networks().items():
        maps = f"{counted(network.in_features, 'map')} in, {network.out_features} out"
        weights = "trained" if network.weights else WITHOUT_WEIGHTS
        typer.echo(f"{name}: {maps}, {weights}")
        seen = PICTURES.get(name)
        for line in (network.about, network.expects and f"expects {network.expects}", seen):
            if line:
                typer.echo(f"  {line}")
