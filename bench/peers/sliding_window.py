"""A process that takes a volume from file to file by MONAI's or nnU-Net's sliding windows.

``python -m bench.peers.sliding_window`` takes the fields of a ``SlidingRun`` as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.peers.whole_windows import peers
from bench.unet_networks import UNETS, unet_weights
from znni.core.shapes import Vec3
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.weights import Float32
from znni.network.window import Window

NNUNET = "nnU-Net"
NNUNET_IN_FLOAT32 = "nnU-Net, float32 sums"


@dataclass(frozen=True)
class SlidingRun:
    """A run of a peer.

    Attributes:
        engine: ``nnU-Net`` for its own predictor, perhaps with float32 sums, or a name of
            ``bench.peers.whole_windows.peers`` that MONAI's ``sliding_window_inference`` calls for
            each window.
        network: the name of the U-Net, whose weights are random.
        window: the extent of a window along all axes.
        overlap: the share of a window that the next one covers again.
        threads: the threads of the peer.
        source: the volume, ``.npy`` (z, y, x).
        target: the output, ``.npy`` (f', z, y, x).
    """

    engine: str
    network: str
    window: int
    overlap: float
    threads: int
    source: str
    target: str

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", "bench.peers.sliding_window", json.dumps(asdict(self))]

    def run(self) -> None:
        """Run it in this process."""
        import torch

        torch.set_num_threads(self.threads)
        network = UNETS[self.network]()
        volume = np.load(self.source)[None]
        if self.engine in (NNUNET, NNUNET_IN_FLOAT32):
            with float32_sums() if self.engine == NNUNET_IN_FLOAT32 else nullcontext():
                found = self._nnunet(network, volume)
        else:
            with TemporaryDirectory() as folder:
                found = self._monai(network, volume, Path(folder))
        np.save(self.target, found)

    def _monai(self, network: Network, volume: Float32, folder: Path) -> Float32:
        import torch
        from monai.inferers import sliding_window_inference

        size = Vec3.of(self.window)
        window = np.zeros((1, *size), np.float32)
        # The graph is that of a network over one window.
        network = with_window(network, Window(size, overlap=0))
        makers: dict[str, Callable[..., Any]] = dict(
            peers(network, unet_weights(network), window, self.threads, folder)
        )
        compute = makers[self.engine]()

        def predictor(windows: Any) -> Any:
            return torch.from_numpy(compute(windows[0].numpy()))[None]

        with torch.inference_mode():
            found = sliding_window_inference(
                torch.from_numpy(volume)[None], tuple(size), 1, predictor, self.overlap,
                mode="gaussian",
            )  # fmt: skip
        return np.asarray(found[0].numpy())

    def _nnunet(self, network: Network, volume: Float32) -> Float32:
        from bench.peers.torch_graph import TorchGraph

        module = TorchGraph(network, unet_weights(network)).eval()
        window = Window(Vec3.of(self.window), self.overlap)
        found = nnunet_logits(module, network.out_features, volume, window)
        return np.asarray(found.float().numpy())


def nnunet_logits(module: Any, maps: int, volume: Float32, window: Window) -> Any:
    """Return the tensor of nnU-Net's predictor for a volume that needs no preprocessing.

    On a CPU its layers compute in float32.

    Args:
        module: the network, in evaluation mode.
        maps: those of its output.
        volume: (f, z, y, x).
        window: size, overlap and mirroring.
    """
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(
        1 - window.overlap, True, bool(window.mirror), False, torch.device("cpu"), False, False,
        False,
    )  # fmt: skip
    labels = SimpleNamespace(num_segmentation_heads=maps)
    plans = SimpleNamespace(get_label_manager=lambda _dataset: labels)
    configuration = SimpleNamespace(patch_size=list(window.size))
    predictor.manual_initialization(
        module, plans, configuration, [module.state_dict()], {}, "",
        tuple("zyx".index(axis) for axis in window.mirror) or None,
    )  # fmt: skip
    return predictor.predict_logits_from_preprocessed_data(torch.from_numpy(volume))


@contextmanager
def float32_sums() -> Iterator[None]:
    """Have nnU-Net weigh and add up windows in float32 instead of float16."""
    import torch
    from nnunetv2.inference import predict_from_raw_data as source

    weights = partial(source.compute_gaussian, dtype=torch.float32)
    sums = patch.object(torch, "half", torch.float32)
    with patch.object(source, "compute_gaussian", weights), sums:
        yield


if __name__ == "__main__":
    SlidingRun(**json.loads(sys.argv[1])).run()
