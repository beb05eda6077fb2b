"""Catalogue of all primitives and their families.

Every file of a primitive is found by itself. A module in ``cpu``, ``gpu`` or ``host_and_gpu``, or
the module ``primitive`` of a package there, adds the primitives that its function
``primitives(device)`` returns. In ``host_and_gpu`` this function takes both devices and the GPU's
own primitives: ``primitives(host, gpu, on_gpu)``. A module of GPU primitives that not every GPU has
says in ``NEEDS`` what a GPU needs. Other packages bring more primitives (``installed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from znni.core.discovery import member, member_names, members, subpackages
from znni.core.packages import PRIMITIVES, offers
from znni.core.processors import GPU, HOST, HOST_AND_GPU, Processors, may_use_gpu, may_use_host
from znni.machine.machine import Device, Machine
from znni.plans.primitive import Catalogue, LazyCatalogue, Primitive
from znni.primitives.installed import InstalledMember, installed

# Beginnings of the primitives' names in each family, without the prefix gpu_ of GPU primitives.
FAMILIES: dict[str, tuple[str, ...]] = {
    "tiled FFT": ("fft_tiled",),
    "FFT of whole images": ("fft_data_parallel", "fft_task_parallel", "fft_pruned"),
    "Winograd": ("winograd",),
    "lowered to matrix products": ("lowered",),
    "direct": ("direct", "packed_direct"),
    "cuDNN": ("cudnn",),
}

# Beginnings of the primitives' names of modules that are not named after them. They only say where
# to look first.
JOINS = ("concatenation", "addition", "multiplication", "maximum")
BEGINNINGS: dict[str, tuple[str, ...]] = {
    "cpu/joins": JOINS,
    "gpu/joins": tuple(f"gpu_{name}" for name in JOINS),
    "cpu/fft_whole_image": ("fft_data_parallel", "fft_task_parallel"),
    "gpu/arranged": ("arranged_gpu",),
    "other_library/primitive": ("onnxruntime", "pytorch"),
    "other_library/on_gpu": ("gpu_pytorch",),
}


class _Member:
    """The primitives of one module, found when they are looked up.

    Args:
        kind: the folder of the module.
        name: the name of the module within it.
        given: what its function ``primitives`` takes.
    """

    def __init__(self, kind: str, name: str, *given: Device | Catalogue) -> None:
        self._kind, self._name, self._given = kind, name, given
        own = f"gpu_{name}" if kind == GPU else name
        self.beginnings = BEGINNINGS.get(f"{kind}/{name}", (own,))

    @cached_property
    def primitives(self) -> dict[str, Primitive]:
        """The primitives by name; none if the module is no primitive's."""
        module = member(f"{__package__}.{self._kind}", self._name, "primitive")
        made = getattr(module, "primitives", None)
        return _by_name(made(*self._given)) if made else {}


@lru_cache(maxsize=1024)
def _likeliest_first(name: str, beginnings: tuple[tuple[str, ...], ...], own: int) -> list[int]:
    """Return the numbers of members, first those where a primitive's name suggests that it is.

    Args:
        name: the primitive's name.
        beginnings: how names of each member's primitives may begin.
        own: how many members are znni's own. They come first, so that no package replaces one.
    """
    letters = [max(len(it) if name.startswith(it) else 0 for it in each) for each in beginnings]
    return sorted(range(len(letters)), key=lambda it: (not letters[it], it >= own, -letters[it]))


class _ModuleCatalogue(LazyCatalogue):
    """The primitives of modules, which are imported when one of theirs is looked up.

    Args:
        own: the modules of znni, in the order of the catalogue.
        cache_key: a text that differs for other members.
        devices: the devices that they are for.
        more: the members that other packages bring.
    """

    def __init__(
        self,
        own: Sequence[_Member],
        cache_key: str,
        devices: tuple[Device, ...],
        more: Sequence[InstalledMember] = (),
    ) -> None:
        self._own, self._more, self.cache_key, self.devices = own, more, cache_key, devices
        self._members: tuple[_Member | InstalledMember, ...] = (*own, *more)
        self._beginnings = tuple(it.beginnings for it in self._members)

    @cached_property
    def all_found(self) -> dict[str, Primitive]:
        """All primitives by name."""
        by_name = _by_name(chain.from_iterable(it.primitives.values() for it in self._own))
        for brought in self._more:
            for name, primitive in brought.primitives.items():
                if by_name.setdefault(name, primitive) is not primitive:
                    raise brought.offer.unusable(f"another primitive is named {name}, too")
        return by_name

    def __getitem__(self, name: str) -> Primitive:
        if "all_found" in self.__dict__:
            return self.all_found[name]
        for number in _likeliest_first(name, self._beginnings, len(self._own)):
            if name in (primitives := self._members[number].primitives):
                return primitives[name]
        raise KeyError(name)


def catalogue(
    machine: Machine, processors: Processors = HOST_AND_GPU, *, models: bool = False
) -> LazyCatalogue:
    """Return all primitives that the machine's devices can run, by name.

    Only the first GPU counts. Host primitives that use a GPU are built on the GPU's own primitives.
    A module is imported when one of its primitives is looked up.

    Args:
        processors: the processors that compute; other primitives are not offered.
        models: whether to add the primitives of networks that have a model in a file.
    """
    modules: list[_Member] = []
    devices: list[Device] = []
    if may_use_host(processors):
        modules += _members(HOST, machine.host)
        devices.append(machine.host)
    for gpu in machine.gpus[:1] if may_use_gpu(processors) else ():
        on_gpu = _members(gpu.backend or GPU, gpu)
        modules += on_gpu
        devices.append(gpu)
        if may_use_host(processors) and not gpu.backend:
            own = _ModuleCatalogue(on_gpu, GPU, (gpu,))
            modules += _members("host_and_gpu", machine.host, gpu, own)
    if models:
        modules += [_Member("other_library", "primitive", machine.host)]
        modules += [
            _Member("other_library", "on_gpu", gpu)
            for gpu in devices
            if gpu.kind == GPU and not gpu.backend
        ]
    more = installed(*devices)
    cache_key = "\n".join(
        [f"{processors}{' and models' * models}", *(it.offer.state for it in more)]
    )
    return _ModuleCatalogue(modules, cache_key, tuple(devices), more)


def _members(kind: str, *given: Device | Catalogue) -> list[_Member]:
    if not _is_own(kind):
        return []
    return [_Member(kind, name, *given) for name in member_names(f"{__package__}.{kind}")]


def _is_own(kind: str) -> bool:
    """Return whether znni has a folder of primitives; an installed package may have others."""
    return kind in subpackages(__package__)


class GpuOffer(NamedTuple):
    """The primitives of one module that a GPU has, or why it has none.

    Attributes:
        family: such as ``gpu_fft_tiled``.
        names: the primitives that it has.
        needs: what a GPU needs to have them; nothing if every GPU does.
    """

    family: str
    names: tuple[str, ...]
    needs: str


def gpu_offers(gpu: Device) -> list[GpuOffer]:
    """Return what a GPU has of each module of GPU primitives."""
    by_module = list[GpuOffer]()
    folder = gpu.backend or GPU
    for module in members(f"{__package__}.{folder}", "primitive") if _is_own(folder) else ():
        if hasattr(module, "primitives"):
            family = f"gpu_{module.__name__.split('.')[-2]}"
            names = tuple(primitive.name for primitive in module.primitives(gpu))
            by_module.append(GpuOffer(family, names, getattr(module, "NEEDS", "")))
    return by_module


def families(primitives: Catalogue) -> dict[str, set[str]]:
    """Return each family's primitives, with all that are no convolutions; skip empty families.

    The primitives of an installed package are a family, too.
    """
    named = FAMILIES | {str(it.entry.name): (it.entry.name,) for it in offers(PRIMITIVES)}
    own = {
        family: {name for name in primitives if name.rpartition("gpu_")[2].startswith(beginnings)}
        for family, beginnings in named.items()
    }
    others = set(primitives).difference(*own.values())
    return {family: names | others for family, names in own.items() if names}


def _by_name(primitives: Iterable[Primitive]) -> dict[str, Primitive]:
    by_name: dict[str, Primitive] = {}
    for primitive in primitives:
        if primitive.name in by_name:
            raise RuntimeError(f"two primitives are named {primitive.name!r}")
        by_name[primitive.name] = primitive
    return by_name
