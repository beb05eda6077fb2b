"""Networks of nnU-Net's results folders, imported once into the user's cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from znni.cases.preparation import rules_of
from znni.cases.previous_stage import PreviousNetwork
from znni.core.errors import InvalidInput
from znni.core.logged import log_of_waits
from znni.core.text import duration
from znni.core.user_cache import (
    MOST_BYTES_OF_IMPORTS,
    delete_unused_once,
    load,
    state_of_source,
    user_cache,
)
from znni.importing.nnunet_folder import DATASET, PLANS, Results, check_holds_no_results
from znni.inference.import_process import import_apart
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import weights_for

log = logging.getLogger("znni")


def network_of_results(results: Results) -> Network:
    """Return the network of a results folder, which names its weights. Import it if needed.

    Raises:
        InvalidInput: the folder is not as nnU-Net writes it, PyTorch is missing, or the cache
            cannot be written.
        RunFailed: the imported network differs from the original.
    """
    imports = user_cache() / "imports"
    imported = imports / f"nnunet-{_identity(results)[:24]}" / "nnunet.yaml"
    if load(imported) is None:
        log_of_waits.info("importing %s, once", results.path)
        try:
            imported.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"{results.path}: its network is imported into the cache folder {user_cache()}, "
                f"which cannot be written: {error.strerror}; let XDG_CACHE_HOME name a folder that "
                f"can"
            ) from None
        begun = perf_counter()
        log.info("%s", import_apart(results, imported))
        log_of_waits.info("imported in %s", duration(perf_counter() - begun))
        delete_unused_once(imports, MOST_BYTES_OF_IMPORTS)
    return load_network(imported)


def previous_network(
    results: Results, network: Network, adapted: Callable[[Network], Network]
) -> PreviousNetwork | None:
    """Return the network of the previous stage, whose results folder lies beside.

    Returns:
        The previous stage; None if the network takes a scan alone.

    Raises:
        InvalidInput: there is no such folder, or its network cannot be imported.
    """
    stage = rules_of(network).previous_stage
    if stage is None:
        return None
    place = results.place
    before = place.with_name("__".join([*place.name.split("__")[:-1], stage.name]))
    if not before.is_dir():
        raise InvalidInput(
            f"{place} takes the labels of {stage.name}, and there is no {before}; put the results "
            f"of {stage.name} there, or give its labels"
        )
    earlier = replace(results, path=before)
    found = adapted(network_of_results(earlier))
    weights = weights_for(found, None, None, mapped=True)
    return PreviousNetwork(found, weights, previous_network(earlier, found, adapted))


def _identity(results: Results) -> str:
    """Return a text that changes if the folder's files change, or the code that imports them."""
    place = results.place
    if not (place / PLANS).exists():
        check_holds_no_results(place)
    digest = sha256(state_of_source(Path(__file__).parent.parent / "importing").encode())
    for name in (PLANS, DATASET):
        try:
            digest.update((place / name).read_bytes())
        except OSError as error:
            raise InvalidInput(
                f"{place / name}: {error.strerror}; give a results folder of nnU-Net, which has it"
            ) from None
    for file in results.checkpoints:
        about = file.stat()
        digest.update(f"{file.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()
