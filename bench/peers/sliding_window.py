"""A process that takes a volume from file to file by MONAI's or nnU-Net's sliding windows.

``python -m bench.peers.sliding_window`` takes the fields of a ``SlidingRun`` as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.peers.nnunet_predict import float32_sums
from bench.peers.whole_windows import peers
from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, Weights, load_weights
from znni.network.window import Window

NNUNET = "nnU-Net"
NNUNET_IN_FLOAT32 = "nnU-Net, float32 sums"
NNUNET_COMPILED = "nnU-Net, compiled"
NNUNETS = (NNUNET, NNUNET_IN_FLOAT32, NNUNET_COMPILED)

# Takes a volume (f, z, y, x) to a tensor of maps (f', z, y, x).
Slide = Callable[[Float32], Any]


@dataclass(frozen=True)
class SlidingRun:
    """A run of a peer.

    Attributes:
        engine: one of ``NNUNETS`` for nnU-Net's own predictor, or a name of
            ``bench.peers.whole_windows.peers`` or ``bench.peers.torch_windows.torch_ways``, which
            MONAI's ``sliding_window_inference`` calls.
        net: a network file with windows.
        weights: the file of its weights.
        device: the device, by PyTorch's name.
        threads: the threads of the peer.
        batch: windows in one call by MONAI.
        labels: whether the label of the largest map is stored, instead of values.
        source: the volume, ``.npy`` (z, y, x).
        target: the output, ``.npy``: values (f', z, y, x), or labels (z, y, x).
    """

    engine: str
    net: str
    weights: str
    device: str
    threads: int
    batch: int
    labels: bool
    source: str
    target: str

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", "bench.peers.sliding_window", json.dumps(asdict(self))]

    @property
    def report(self) -> Path:
        """The file that says what it measured of itself, as ``run`` writes it."""
        return Path(self.target).with_suffix(".json")

    def run(self) -> None:
        """Run it in this process, and report the seconds of its windows and the GPU's peak.

        Before they are timed, the network computes once. So compiling and tuning do not count.
        """
        import torch

        torch.set_num_threads(self.threads)
        network = load_network(self.net)
        weights = load_weights(self.weights, network)
        volume = np.load(self.source)[None].astype(np.float32, copy=False)
        with TemporaryDirectory() as folder:
            slide = self._slide(network, weights, volume, Path(folder))
            begun = time.perf_counter()
            values = slide(volume)
            found = values.argmax(0).to(torch.uint8) if self.labels else values.float()
            made = found.cpu().numpy()
            seconds = time.perf_counter() - begun
        np.save(self.target, made)
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        self.report.write_text(json.dumps({"work_seconds": seconds, "gpu_peak_memory_bytes": peak}))

    def _slide(self, network: Network, weights: Weights, volume: Float32, folder: Path) -> Slide:
        """Return what takes the volume to values. The network has computed once."""
        window = network.window
        assert window is not None
        network = replace(network, window=None)
        begin = tuple(slice(extent) for extent in window.size)
        if self.engine in NNUNETS:
            from bench.peers.torch_graph import TorchGraph

            module = TorchGraph(network, weights).eval()
            in_float32 = self.engine == NNUNET_IN_FLOAT32
            compiled = self.engine == NNUNET_COMPILED
            predict = nnunet(
                module, network.out_features, window, device=self.device, compiled=compiled
            )

            def slide(given: Float32) -> Any:
                with float32_sums() if in_float32 else nullcontext():
                    return predict(given).to(self.device)

            slide(volume[:, *begin])
            return slide
        return self._monai(network, weights, window, volume[:, *begin], folder)

    def _monai(
        self, network: Network, weights: Weights, window: Window, first: Float32, folder: Path
    ) -> Slide:
        """Return MONAI's inferer. It does not mirror, so windows must not ask for it."""
        # Loading MONAI takes seconds. They are not work, so they pass before the clock starts.
        import monai.inferers  # noqa: F401
        import torch

        from bench.peers.torch_windows import torch_ways

        assert not window.mirror
        ways = torch_ways(network, weights, device=self.device)
        if self.engine in ways:
            peer = ways[self.engine]()

            def predictor(windows: Any) -> Any:
                return peer(peer.taken(windows)).float()
        else:
            compute = dict(peers(network, weights, first, self.threads, folder))[self.engine]()

            def predictor(windows: Any) -> Any:
                return torch.from_numpy(np.stack([compute(each.numpy()) for each in windows]))

        predictor(torch.from_numpy(first)[None].repeat(self.batch, 1, 1, 1, 1))

        def slide(given: Float32) -> Any:
            there = torch.from_numpy(given).to(self.device)
            return in_windows_of_monai(there, window.size, window.overlap, predictor, self.batch)

        return slide


def in_windows_of_monai(
    x: Any,
    window: Vec3,
    overlap: float,
    predictor: Callable[[Any], Any],
    batch: int = 1,
    device: str = "cpu",
) -> Any:
    """Return the maps (f', z, y, x) that MONAI's inferer makes, with Gaussian weights.

    Args:
        x: the volume (f, z, y, x), a tensor.
        window: the voxels of a window.
        overlap: the share of a window that the next one overlaps.
        predictor: takes windows (n, f, z, y, x) to maps.
        batch: the windows that the predictor takes at a time.
        device: where windows are computed and blended, by PyTorch's name.
    """
    import torch
    from monai.inferers import sliding_window_inference

    with torch.inference_mode():
        return sliding_window_inference(
            x[None], tuple(window), batch, predictor, overlap, mode="gaussian",
            sw_device=device, device=device,
        )[0].cpu()  # fmt: skip


def nnunet(
    module: Any, maps: int, window: Window, *, device: str = "cpu", compiled: bool = False
) -> Slide:
    """Return nnU-Net's predictor for volumes that need no preprocessing.

    On a CPU its layers compute in float32, on a GPU in float16 where PyTorch's autocast does.

    Args:
        module: the network, in evaluation mode.
        maps: those of its output.
        window: size, overlap and mirroring.
        device: the device, by PyTorch's name.
        compiled: whether it compiles the network, as it does if ``nnUNet_compile`` is set.
    """
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(
        1 - window.overlap, True, bool(window.mirror), device != "cpu", torch.device(device),
        False, False, False,
    )  # fmt: skip
    labels = SimpleNamespace(num_segmentation_heads=maps)
    plans = SimpleNamespace(get_label_manager=lambda _dataset: labels)
    configuration = SimpleNamespace(patch_size=list(window.size))
    with patch.dict("os.environ", nnUNet_compile="t" if compiled else "f"):
        predictor.manual_initialization(
            module, plans, configuration, [module.state_dict()], {}, "",
            tuple("zyx".index(axis) for axis in window.mirror) or None,
        )  # fmt: skip
    return lambda volume: predictor.predict_logits_from_preprocessed_data(torch.from_numpy(volume))


if __name__ == "__main__":
    SlidingRun(**json.loads(sys.argv[1])).run()
