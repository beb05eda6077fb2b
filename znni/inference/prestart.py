"""Work that a command begins before it loads the modules that plan and run.

It imports few modules itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from znni.core.processors import DeviceChoice
from znni.machine.gpus import are_known, ask_driver
from znni.machine.gpus_option import seeing_only, several_named

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from znni.engine.workers.processes import WaitingProcesses
    from znni.network.network import Network
    from znni.network.weights import Weights

# The module that makes the runner in a worker's process.
PREPARES = "znni.inference.worker_runner"


def weights_ahead(
    network: Network, given: Weights | str | Path | None, random_seed: int | None
) -> Future[Weights]:
    """Begin to read, check and hash a network's weights, or to draw them.

    The result's errors are those of ``weights_for``, which has the same arguments.
    """
    from znni.machine.io_threads import begin_task
    from znni.network.weights import weights_for

    def read() -> Weights:
        weights = weights_for(network, given, random_seed)
        _ = weights.sha256  # kept
        return weights

    return begin_task(read)


def processes_for(device: DeviceChoice, gpus: int | str) -> WaitingProcesses | None:
    """Start the processes of a run if a user names several GPUs that are known; else return None.

    If the GPUs are not known, CUDA inspects them in this process, and notes how much of their
    memory it takes. Processes that start at the same time would take some, too.

    Args:
        device: where the layers run.
        gpus: the choice of GPUs.

    Raises:
        InvalidInput: it is no choice.
    """
    numbers = several_named(device, gpus)
    return several_waiting(numbers) if numbers and are_known() else None


def several_waiting(gpus: Iterable[int]) -> WaitingProcesses:
    """Start the processes of a run on several GPUs.

    Args:
        gpus: the positions of the GPUs.
    """
    from znni.engine.workers.processes import WaitingProcesses  # few runs need other processes

    waiting = WaitingProcesses(map(seeing_only, gpus), (PREPARES,))
    ask_driver()  # long before they have imported what starts CUDA
    return waiting
