"""Primitives that installed packages bring, by entry points of the group ``znni.primitives``.

The entry point is a function ``primitives(device)``. It is called with each device that computes,
and returns the package's primitives for it. All their names begin with the entry point's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from znni.core.packages import PRIMITIVES, Offer, offers
from znni.machine.machine import Device
from znni.plans.primitive import Primitive

MEMBERS = ("name", "device", "accuracy", "version", "out_shape", "cost", "build")


class InstalledMember:
    """The primitives of one entry point for one device, imported when they are looked up."""

    def __init__(self, offer: Offer, device: Device) -> None:
        self.offer, self._device = offer, device
        self.beginnings = (offer.entry.name,)

    @cached_property
    def primitives(self) -> dict[str, Primitive]:
        """The primitives by name.

        Raises:
            InvalidInput: the package cannot be imported, or brings something else.
        """
        return {it.name: it for it in self._checked()}

    def _checked(self) -> Iterator[Primitive]:
        offer, function = self.offer, self.offer.load()
        try:
            found = tuple(function(self._device))
        except Exception as error:  # the code of others may raise anything
            message = f"{type(error).__name__}: {error}"
            raise offer.unusable(f"gives no primitives of a device: {message}") from error
        for it in found:
            if missing := [name for name in MEMBERS if not hasattr(it, name)]:
                raise offer.unusable(f"{it!r} is no primitive: it has no {', '.join(missing)}")
            if not str(it.name).startswith(offer.entry.name):
                raise offer.unusable(
                    f"the name of primitive {it.name!r} does not begin with {offer.entry.name}"
                )
            if it.device != self._device:
                raise offer.unusable(f"primitive {it.name} is for another device than was asked")
            yield it


def installed(*devices: Device) -> list[InstalledMember]:
    """Return the primitives of all installed packages for some devices.

    Args:
        devices: the devices that compute.
    """
    return [InstalledMember(offer, device) for offer in offers(PRIMITIVES) for device in devices]
