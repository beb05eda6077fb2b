"""Dask clusters, as a cluster's description says: started here, or reached at an address."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Security

from znni.cluster.cluster_file import Cluster
from znni.cluster.kubernetes import started_in_kubernetes
from znni.cluster.schedule import DEPTH
from znni.core.errors import InvalidInput, RunFailed

CALLS_AT_A_TIME = DEPTH + 1  # of a worker: its blocks, and one question about it
CONNECT_SECONDS = 10


def started_cluster(cluster: Cluster, folder: str) -> Any:
    """Start the scheduler and the workers of a cluster, and return Dask's object of it.

    Args:
        cluster: of a kind that is started here.
        folder: for files of workers. All machines see it; nobody else may read it.

    Raises:
        InvalidInput: a library is missing, or the cluster cannot be started here.
        RunFailed: its processes do not start.
    """
    try:
        if cluster.kind == "local":
            return _local(cluster)
        if cluster.kind == "kubernetes":
            return _in_kubernetes(cluster)
        return _jobs(cluster, folder)
    except (OSError, RuntimeError) as error:
        raise RunFailed(
            f"the processes of the cluster do not start: {error}; check that this machine can run "
            f"them, and that a script calls this under if __name__ == '__main__'"
        ) from error


def _jobs(cluster: Cluster, folder: str) -> Any:
    try:
        from znni.cluster.slurm import SlurmCluster
    except ImportError:
        raise InvalidInput(
            "a cluster of kind slurm needs dask-jobqueue; install it with: pip install "
            "'znni[slurm]'"
        ) from None
    return SlurmCluster(cluster, Path(folder), CALLS_AT_A_TIME, _web_server(cluster))


def _in_kubernetes(cluster: Cluster) -> Any:
    try:
        return started_in_kubernetes(cluster, CALLS_AT_A_TIME)
    except ImportError:
        raise InvalidInput(
            "a cluster of kind kubernetes needs dask-kubernetes; install it with: pip install "
            "'znni[kubernetes]'"
        ) from None
    except Exception as error:  # of several libraries
        raise RunFailed(
            f"Kubernetes does not start the cluster: {type(error).__name__}: {error}; check that "
            f"kubectl get pods works here, and that the operator of dask-kubernetes is installed"
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
        scheduler_kwargs=_web_server(cluster),
        worker_dashboard_address=None,
        silence_logs=logging.CRITICAL,
    )


def _web_server(cluster: Cluster) -> dict[str, Any]:
    """Return the scheduler's options of its web server, which it starts in any case.

    Without a dashboard, that server tells only of the scheduler's health. Only this machine
    reaches it.
    """
    address = cluster.dashboard
    return {"dashboard": address is not None, "dashboard_address": address or "127.0.0.1:0"}
