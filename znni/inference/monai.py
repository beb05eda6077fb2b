"""Drop-in replacement for MONAI's sliding-window inferer, for batches of tensors or arrays."""

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

PLANNED = "the plan chooses windows and batches, within ram='8GiB' or so"
BLENDED = "each voxel is computed once, from its whole field of view: nothing is blended"
BEYOND = "border and pad choose what the network sees beyond the edges"
PLACED = "device='cpu' or 'gpu' says where the layers run, and outputs are where the inputs are"
NEEDLESS = "znni has no use for it"

# Arguments of MONAI's inferer, and the reason why znni's does not take them.
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
    """Runs a network over batches (n, f, z, y, x), with the calls of MONAI's inferer of this name.

    ``inferer(inputs, network)`` returns the dense output (n, f', z', y', x'), as large as the
    inputs. The output is a float32 tensor on the device of the inputs, or an array if the inputs
    are an array. It is float32 even if inputs and network have half precision.

    MONAI's arguments for windows, overlap and batches are refused, because the plan chooses these.
    Dense output has no windows. MONAI's output is close to it, except near the seams of its
    windows.

    Give the network once, to the inferer, or give it with each call. An object with layers, such as
    a ``torch.nn.Module``, is imported at the first call (see ``znni.import_network``). It is
    imported again when its parameters or its mode have changed. If the mode matters, the network
    must be in evaluation mode: ``model.eval()``.

    An inferer with a network also works as a predictor: call it with inputs alone. Threads may
    share an inferer. Calls from several threads take turns if they use the same network.

    Args:
        network: a znni network or its file, or anything that ``znni.import_network`` takes except a
            state dict. By default, each call gives the network.
        weights: parameters of a znni network; by default the file that the network names.
        border: ``same`` for an output as large as the input, or ``valid``.
        pad: values beyond the edges with ``same``; by default zeros.
        options: limits and choices for plans, as in ``znni.Inferer``.

    Example:
        >>> inferer = znni.SlidingWindowInferer()
        >>> probability = inferer(images, model)

    Raises:
        InvalidInput: the network cannot be used or imported, or an argument is one of MONAI's.
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
        """Return the dense output of a batch.

        Args:
            inputs: a tensor or an array (n, f, z, y, x).
            network: the network to run; if the inferer has one, the same object or nothing.

        Raises:
            InvalidInput: the inputs are not a batch or require gradients. Or there is no network,
                it is not the inferer's, or it cannot be imported.
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
        """Return the inferer of a network; make a new one if the network has changed."""
        with self._making:
            state, inferer = _state(network), self._inferer
            if inferer is None or state != self._made_of:
                self._inferer = inferer = None  # frees the old inferer's memory first
                known, weights = network, self._weights
                if not _is_of_znni(network):
                    known, weights = network_of(network)
                inferer = Inferer(
                    known, weights, border=self._border, pad=self._pad, **self._options
                )
                self._inferer, self._made_of = inferer, state
            return inferer


def _check_ours(network: object, options: Mapping[str, object]) -> None:
    """Refuse arguments of MONAI's inferer; some of them would change MONAI's output."""
    windows = isinstance(network, int | tuple | list)  # extents: MONAI's first argument
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
    """Return values that change when a network does: itself, its parameters, buffers and mode."""
    if not hasattr(network, "state_dict"):
        return (network,)
    held = network.state_dict  # a method of a module, a dict of an exported program
    tensors = (held(keep_vars=True) if callable(held) else held).values()
    parts = network.modules() if hasattr(network, "modules") else ()
    values = ((tensor.data_ptr(), tensor._version) for tensor in tensors)
    return network, *values, *(part.training for part in parts)


def _as_array(inputs: Any) -> NDArray[Any]:
    """Return a batch as an array in host memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(inputs, torch.Tensor):
        if inputs.requires_grad and torch.is_grad_enabled():
            raise InvalidInput(
                "the inputs require gradients, which znni does not compute; detach them"
            )
        inputs = inputs.detach().cpu().numpy()
    batch = np.asarray(inputs)
    if batch.ndim != 5 or not len(batch):
        raise InvalidInput(
            f"the inputs have shape {batch.shape}; give a batch (n, f, z, y, x), n at least 1"
        )
    return batch


def _like(inputs: Any, outputs: Float32) -> Any:
    """Return outputs in the form of the inputs: an array, or a tensor on the same device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(inputs, torch.Tensor):
        return torch.from_numpy(outputs).to(inputs.device)
    return outputs
