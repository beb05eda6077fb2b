"""A call in the place of MONAI's sliding windows: batches of tensors or arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.options import Border, Pad, PlanOptions, check_keywords
from znni.inference.inferer import Inferer
from znni.inference.network_import import network_of
from znni.network.network import Network
from znni.network.weights import Float32, Weights

PLANNED = "windows and batches are chosen by the plan, within ram='8GiB' or so"
BLENDED = "each voxel is computed once, from its whole field of view: nothing is blended"
BEYOND = "border and pad say what is seen beyond the edges"
PLACED = "device='cpu' or 'gpu' says where the layers run, and outputs are where the inputs are"
NEEDLESS = "there is nothing to do for it here"

# What MONAI's inferer is told, and why ours is not.
OF_MONAI = {
    "roi_size": PLANNED,
    "sw_batch_size": PLANNED,
    "overlap": BLENDED,
    "mode": BLENDED,
    "sigma_scale": BLENDED,
    "padding_mode": BEYOND,
    "cval": BEYOND,
    "sw_device": PLACED,
    "cpu_thresh": PLACED,
    "progress": NEEDLESS,
    "cache_roi_weight_map": NEEDLESS,
    "buffer_steps": NEEDLESS,
    "buffer_dim": NEEDLESS,
    "with_coord": NEEDLESS,
}


class SlidingWindowInferer:
    """Runs a network over batches (n, f, z, y, x), as MONAI's inferers of that name are called.

    ``inferer(inputs, network)`` gives the dense output (n, f', z', y', x'), of the extents of
    the inputs, as a float32 tensor on their device, or as an array where they are one: as float32
    where inputs and network are of half precision, too. What MONAI
    is told of windows, overlap and batches is left to the plan, and refused: dense output is that
    of no windows, to which MONAI's comes near away from their seams. The network is given once,
    here, or with each call, by what has its layers: a ``torch.nn.Sequential`` is imported (see
    ``znni.import_network``) at the first call, and again where its parameters or its mode have
    changed. It must be in evaluation mode where that makes a difference: ``model.eval()``.
    An inferer with a network is a predictor, too: it is called with inputs alone. Threads may share
    one, whose calls take turns where they are of the same network.

    Args:
        network: a network of znni or its file, or whatever ``znni.import_network`` takes but a
            state dict; by default what calls give.
        weights: of a network of znni; by default the file that it names.
        border: ``same`` for the extents of the inputs, or ``valid``.
        pad: what is seen beyond the edges with ``same``: by default zeros.
        options: what plans may use, as of ``znni.Inferer``.

    Example:
        >>> inferer = znni.SlidingWindowInferer()
        >>> probability = inferer(images, model)

    Raises:
        InvalidInput: the network cannot be used as given, or imported, or an argument is MONAI's.
    """

    def __init__(
        self,
        network: Any = None,
        weights: Weights | str | Path | None = None,
        *,
        border: Border = "same",
        pad: Pad | None = None,
        **options: Unpack[PlanOptions],
    ) -> None:
        _check_ours(network, options)
        check_keywords(SlidingWindowInferer, PlanOptions, options)
        self._given = network
        self._weights = weights
        self._border: Border = border
        self._pad: Pad = pad or ("constant" if border == "same" else "reflect")
        self._options = options
        self._made_of: tuple[object, ...] | None = None
        self._inferer: Inferer | None = None
        self._making = Lock()
        if network is not None:
            self._made_for(network)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_inferer": None, "_made_of": None}
        del state["_making"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._making = Lock()

    def __call__(self, inputs: Any, network: Any = None) -> Any:
        """The dense output of a batch.

        Args:
            inputs: a tensor or an array (n, f, z, y, x).
            network: as given to the inferer, if it was.

        Raises:
            InvalidInput: no batch, a tensor that gradients are wanted for, no network or another
                than the inferer's, or one that cannot be imported.
            DoesNotFit: no plan stays within the memory allowed.
            RunFailed: an imported network differs from the original, or the GPU failed.
        """
        if network is None and self._given is None:
            raise InvalidInput("there is no network; give it to the inferer, or with the inputs")
        if None not in (network, self._given) and network is not self._given:
            raise InvalidInput(
                "the inferer has another network than the one given with the inputs; make an "
                "inferer for each, or one without"
            )
        batch = _as_array(inputs)
        inferer = self._made_for(network if self._given is None else self._given)
        outputs = np.stack([inferer(image) for image in batch])
        return _like(inputs, outputs)

    def _made_for(self, network: Any) -> Inferer:
        """The inferer of a network, made again where that has changed."""
        with self._making:
            state, inferer = _state(network), self._inferer
            if inferer is None or state != self._made_of:
                self._inferer = inferer = None  # what it keeps is freed first
                known, weights = network, self._weights
                if not _is_of_znni(network):
                    known, weights = network_of(network)
                inferer = Inferer(
                    known, weights, border=self._border, pad=self._pad, **self._options
                )
                self._inferer, self._made_of = inferer, state
            return inferer


def _check_ours(network: object, options: Mapping[str, object]) -> None:
    """Refuse what MONAI's inferer takes, of which some would change the output there."""
    windows = isinstance(network, int | tuple | list)  # extents, which come first there
    given = ["roi_size"] * windows + [name for name in options if name in OF_MONAI]
    if given:
        reasons = dict.fromkeys(OF_MONAI[name] for name in given)
        raise InvalidInput(
            f"SlidingWindowInferer takes no {', '.join(given)}, as MONAI's does: "
            f"{'; '.join(reasons)}; leave {'it' if len(given) == 1 else 'them'} out"
        )


def _is_of_znni(network: object) -> bool:
    is_file = isinstance(network, str | Path) and Path(network).suffix in (".yaml", ".yml")
    return is_file or isinstance(network, Network)


def _state(network: Any) -> tuple[object, ...]:
    """What changes where a network does: itself, its parameters and buffers, and its mode."""
    if not hasattr(network, "state_dict"):
        return (network,)
    held = network.state_dict  # a method of a module, the values of an exported program
    tensors = (held(keep_vars=True) if callable(held) else held).values()
    parts = network.modules() if hasattr(network, "modules") else ()
    values = ((tensor.data_ptr(), tensor._version) for tensor in tensors)
    return network, *values, *(part.training for part in parts)


def _as_array(inputs: Any) -> NDArray[Any]:
    """A batch in the memory of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(inputs, torch.Tensor):
        if inputs.requires_grad and torch.is_grad_enabled():
            raise InvalidInput("the inputs require gradients, of which there are none; detach them")
        inputs = inputs.detach().cpu().numpy()
    batch = np.asarray(inputs)
    if batch.ndim != 5 or not len(batch):
        raise InvalidInput(
            f"the inputs have shape {batch.shape}; give a batch (n, f, z, y, x), n at least 1"
        )
    return batch


def _like(inputs: Any, outputs: Float32) -> Any:
    """Outputs as the inputs are: an array, or a tensor on the same device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(inputs, torch.Tensor):
        return torch.from_numpy(outputs).to(inputs.device)
    return outputs
