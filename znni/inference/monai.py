"""Drop-in replacement for MONAI's sliding-window inferer, for batches of tensors or arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from threading import Lock
from typing import Any, SupportsIndex, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.option_types import Blend, Border, Pad
from znni.core.plan_options import PlanOptions, check_keywords
from znni.core.shapes import Vec3, is_extent
from znni.core.shipped import NETWORKS
from znni.inference.inferer import Inferer
from znni.inference.network_import import network_of
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, Weights
from znni.network.window import Window
from znni.network.window_weights import SIGMA

BEYOND = "windows see zeros beyond the edges of a volume that is smaller than one"
USUAL = f"the weights of windows are those of sigma_scale={SIGMA}"
PLACED = "device='cpu' or 'gpu' says where the layers run, and outputs are where the inputs are"
NEEDLESS = "znni has no use for it"

# MONAI's defaults.
OVERLAP = 0.25
MODE: Blend = "constant"

# Arguments of MONAI's inferer, and the reason why znni's does not take them.
OF_MONAI = {
    "sigma_scale": USUAL,
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

    With ``roi_size``, the network is computed in the windows that MONAI would take, and they are
    blended as MONAI does. Without it the output has no windows: it is that of one pass over the
    whole volume. MONAI's output is close to that, except near the seams of its windows.

    Give the network once, to the inferer, or give it with each call. An object with layers, such as
    a ``torch.nn.Module``, is imported at the first call (see ``znni.import_network``). It is
    imported again when its parameters or its mode have changed. If the mode matters, the network
    must be in evaluation mode: ``model.eval()``.

    An inferer with a network also works as a predictor: call it with inputs alone. Threads may
    share an inferer. Calls from several threads take turns if they use the same network.

    Args:
        network: a znni network or its file, or anything that ``znni.import_network`` takes except a
            state dict. By default, each call gives the network. Extents in its place are
            ``roi_size``, as in MONAI.
        weights: parameters of a znni network; by default the file that the network names.
        border: ``same`` for an output as large as the input, or ``valid``.
        pad: values beyond the edges with ``same``; by default zeros.
        roi_size: the extents of windows (z, y, x), or one for all axes.
        overlap: the share of a window that the next one covers again.
        mode: ``constant``, or ``gaussian`` to have the middle of a window count more.
        sw_batch_size: has no effect: the plan chooses what is computed together.
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
        roi_size: int | Sequence[int] | None = None,
        overlap: float = OVERLAP,
        mode: Blend = MODE,
        sw_batch_size: int = 1,  # noqa: ARG002 - MONAI's
        **options: Unpack[PlanOptions],
    ) -> None:
        if isinstance(network, int | tuple | list):
            network, roi_size = None, network
        if isinstance(weights, int):
            raise InvalidInput(f"weights is {weights}; give it as sw_batch_size={weights}")
        if roi_size is None and (overlap, mode) != (OVERLAP, MODE):
            raise InvalidInput(
                f"overlap={overlap:g} and mode={mode!r} are about windows; give roi_size=(z, y, x)"
            )
        _check_ours(options)
        check_keywords(SlidingWindowInferer, PlanOptions, options)
        self._given = network
        self._weights = weights
        self._border: Border = border
        self._pad: Pad = pad or ("constant" if border == "same" else "reflect")
        self._window = None if roi_size is None else _window(roi_size, overlap, mode)
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
                if self._window:
                    known = known if isinstance(known, Network) else load_network(known)
                    known = with_window(known, self._window)
                inferer = Inferer(
                    known, weights, border=self._border, pad=self._pad, any_spacing=True,
                    **self._options,
                )  # fmt: skip
                self._inferer, self._made_of = inferer, state
            return inferer


def _window(roi_size: int | Sequence[int], overlap: float, mode: Blend) -> Window:
    """Return MONAI's windows.

    Raises:
        InvalidInput: they cannot be; MONAI's extents of 0 or less stand for those of the volume.
    """
    size = [roi_size] * 3 if isinstance(roi_size, SupportsIndex) else roi_size
    if not (isinstance(size, Sequence) and len(size) == 3 and all(map(is_extent, size))):
        raise InvalidInput(f"roi_size is {roi_size}; give three extents of 1 or more, (z, y, x)")
    if not isinstance(overlap, Real):
        raise InvalidInput(f"overlap is {overlap}; give one share for all axes, such as 0.25")
    if mode not in get_args(Blend):
        raise InvalidInput(f"mode is {mode!r}; choose one of {', '.join(get_args(Blend))}")
    return Window(Vec3(*map(int, size)), float(overlap), mode)


def _check_ours(options: Mapping[str, object]) -> None:
    """Refuse arguments of MONAI's inferer that would change its output, or mean nothing here."""
    given = [name for name in options if name in OF_MONAI]
    if given:
        reasons = dict.fromkeys(OF_MONAI[name] for name in given)
        raise InvalidInput(
            f"SlidingWindowInferer takes no {', '.join(given)}, as MONAI's does: "
            f"{'; '.join(reasons)}; leave {'it' if len(given) == 1 else 'them'} out"
        )


def _is_of_znni(network: object) -> bool:
    is_file = isinstance(network, str | Path) and (
        Path(network).suffix in (".yaml", ".yml") or NETWORKS.file(str(network)) is not None
    )
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
    """Return outputs in the form of the inputs: an array, or a tensor on the same device.

    A MetaTensor keeps what it knows, such as its affine.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(inputs, torch.Tensor):
        tensor = torch.from_numpy(outputs).to(inputs.device)
        if hasattr(inputs, "copy_meta_from"):  # a MetaTensor of MONAI
            tensor = tensor.as_subclass(type(inputs))
            tensor.copy_meta_from(inputs)
        return tensor
    return outputs
