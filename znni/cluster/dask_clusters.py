"""Dask clusters, as a cluster's description says: started here, or reached at an address."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from distributed import Client, LocalCluster, Security

from znni.cluster.cluster_file import Cluster
from znni.cluster.schedule import DEPTH
from znni.core.errors import InvalidInput, RunFailed

CALLS_AT_A_TIME = DEPTH + 1  # of a worker: its blocks, and one question about it
CONNECT_SECONDS = 10
# Libraries of the kinds of clusters that have a module here with a function ``started``.
LIBRARIES = {"slurm": "dask-jobqueue", "kubernetes": "dask-kubernetes"}


def started_cluster(cluster: Cluster, folder: str) -> Any:
    """Start the scheduler and the workers of a cluster, and return Dask's object of it.

    Args:
        cluster: of a kind that is started here.
        folder: for files of workers. All machines see it; nobody else may read it.

    Raises:
        InvalidInput: a library is missing, or the cluster cannot be started here.
        RunFailed: its processes do not start.
    """
    kind = cluster.kind
    try:
        if kind == "local":
            return _local(cluster)
        return import_module(f"znni.cluster.{kind}").started(cluster, folder)
    except ImportError:
        raise InvalidInput(
            f"a cluster of kind {kind} needs {LIBRARIES[kind]}; install it with: pip install "
            f"'znni[{kind}]'"
        ) from None
    except (OSError, RuntimeError) as error:
        raise RunFailed(
            f"the processes of the cluster do not start: {error}; check that this machine can run "
            f"them, and that a script calls this under if __name__ == '__main__'"
        ) from error


def connected(cluster: Cluster) -> Client:
    """Connect to the scheduler that runs already.

    Raises:
        InvalidInput: it does not answer.
    """
    tls = cluster.tls
    security = (
        Security(
            tls_ca_file=str(tls.ca),
            tls_client_cert=str(tls.cert),
            tls_client_key=str(tls.key),
            require_encryption=True,
        )
        if tls
        else None
    )
    try:
        return Client(cluster.address, security=security, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"no Dask scheduler answers at {cluster.address}: {error or type(error).__name__}; "
            f"start one with dask scheduler, or correct the address"
        ) from None


def _local(cluster: Cluster) -> Any:
    (group,) = cluster.groups
    return LocalCluster(
        n_workers=group.count,
        threads_per_worker=CALLS_AT_A_TIME,
        processes=True,
        memory_limit=0,
        security=Security.temporary(),
        protocol="tls://",
        host="127.0.0.1",
        scheduler_kwargs=web_server(cluster),
        worker_dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )


def web_server(cluster: Cluster) -> dict[str, Any]:
    """Return the scheduler's options of its web server, which it starts in any case.

    Without a dashboard, that server tells only of the scheduler's health. Only this machine
    reaches it.
    """
    address = cluster.dashboard
    return {"dashboard": address is not None, "dashboard_address": address or "127.0.0.1:0"}
