"""Networks of nnU-Net's results folders, imported once into the user's cache."""

from __future__ import annotations

import logging
from hashlib import sha256
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.user_cache import (
    MOST_BYTES_OF_IMPORTS,
    delete_unused_once,
    load,
    state_of_source,
    user_cache,
)
from znni.importing.nnunet_folder import DATASET, PLANS, Results
from znni.inference.network_import import import_network
from znni.network.network import Network
from znni.network.network_file import load_network

log = logging.getLogger("znni")


def network_of_results(results: Results) -> Network:
    """Return the network of a results folder, which names its weights. Import it if needed.

    Args:
        results: the results folder, with the folds and checkpoints to use.

    Raises:
        InvalidInput: the folder is not as nnU-Net writes it, or PyTorch is missing.
        RunFailed: the imported network differs from the original.
    """
    imports = user_cache() / "imports"
    imported = imports / f"nnunet-{_identity(results)[:24]}" / "nnunet.yaml"
    if load(imported) is None:
        log.warning("importing %s, once", results.path)
        imported.parent.mkdir(parents=True, exist_ok=True)
        log.info("%s", import_network(results, imported, overwrite=True))
        delete_unused_once(imports, MOST_BYTES_OF_IMPORTS)
    return load_network(imported)


def _identity(results: Results) -> str:
    """Return a text that changes if the folder's files change, or the code that imports them."""
    place = results.place
    found = sha256(state_of_source(Path(__file__).parent.parent / "importing").encode())
    for name in (PLANS, DATASET):
        try:
            found.update((place / name).read_bytes())
        except OSError as error:
            raise InvalidInput(
                f"{place / name}: {error.strerror}; give a results folder of nnU-Net, which has it"
            ) from None
    for file in results.checkpoints:
        about = file.stat()
        found.update(f"{file.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    return found.hexdigest()
