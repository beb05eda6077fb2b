"""Networks for tests, made by hand or at random."""

from __future__ import annotations

from hypothesis import strategies as st

from znni.core.shapes import Vec3
from znni.network.input_scaling import InputScaling
from znni.network.layers import Activation, Conv, Layer, Pool
from znni.network.network import Network


def chain(*layers: int | tuple[str, int | tuple[int, int, int]], features: int = 2) -> Network:
    """Return a network of pairs such as ("conv", 3) and ("pool", (1, 2, 2))."""
    made: list[Layer] = []
    maps = 1
    for index, (kind, extent) in enumerate(layers):  # type: ignore[misc]
        if kind == "conv":
            made.append(Conv(f"l{index}", maps, features, Vec3.of(extent), "tanh"))
            maps = features
        else:
            made.append(Pool(f"l{index}", Vec3.of(extent)))
    return Network.chain("test", 1, tuple(made))


extents = st.tuples(*[st.integers(1, 3)] * 3)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    kinds = draw(st.lists(st.sampled_from(["conv", "pool"]), min_size=0, max_size=3))
    kinds = ["conv", *kinds] if draw(st.booleans()) else [*kinds, "conv"]
    layers: list[Layer] = []
    maps = first = draw(st.integers(1, 2))
    activations: list[Activation] = ["relu", "sigmoid", "tanh", "elu", "softmax", "identity"]
    for index, kind in enumerate(kinds):
        extent = Vec3(*draw(extents))
        if kind == "conv":
            features = draw(st.integers(1, 2))
            activation = draw(st.sampled_from(activations))
            layers.append(Conv(f"l{index}", maps, features, extent, activation))
            maps = features
        else:
            layers.append(Pool(f"l{index}", extent))
    return Network.chain("random", first, tuple(layers), InputScaling(0.5, 0.25))
