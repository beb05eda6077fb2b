"""A process that takes a volume to the labels of many classes by MONAI's or nnU-Net's windows.

``python -m bench.peers.sliding_labels`` takes the fields of a ``LabelsRun`` as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace

import numpy as np

from bench.peers.sliding_window import NNUNET, nnunet_logits
from znni.network.network_file import load_network
from znni.network.weights import random_weights

MONAI = "MONAI"


@dataclass(frozen=True)
class LabelsRun:
    """A run of a peer.

    Attributes:
        engine: ``MONAI`` or ``nnU-Net``.
        net: a network file with windows. Its weights are random.
        seed: the seed of the weights.
        threads: the threads of the peer.
        source: the volume, ``.npy`` (z, y, x).
        target: the labels, ``.npy`` (z, y, x).
    """

    engine: str
    net: str
    seed: int
    threads: int
    source: str
    target: str

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", "bench.peers.sliding_labels", json.dumps(asdict(self))]

    def run(self) -> None:
        """Run it in this process. The largest map of a voxel is its label."""
        import torch
        from monai.inferers import sliding_window_inference

        from bench.peers.torch_graph import TorchGraph

        torch.set_num_threads(self.threads)
        network = load_network(self.net)
        window = network.window
        assert window is not None
        weights = random_weights(network, self.seed)
        module = TorchGraph(replace(network, window=None), weights).eval()
        volume = np.load(self.source)[None].astype(np.float32)
        if self.engine == NNUNET:
            values = nnunet_logits(module, network.out_features, volume, window)
        else:
            with torch.inference_mode():
                values = sliding_window_inference(
                    torch.from_numpy(volume)[None], tuple(window.size), 1, module, window.overlap,
                    mode="gaussian",
                )[0]  # fmt: skip
        np.save(self.target, values.argmax(0).numpy().astype(np.uint8))


if __name__ == "__main__":
    LabelsRun(**json.loads(sys.argv[1])).run()
