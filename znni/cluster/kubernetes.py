"""Workers that are pods of Kubernetes, which the operator of dask-kubernetes keeps running."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from uuid import uuid4

from znni.cluster.cluster_file import Cluster, Group
from znni.cluster.dask_clusters import CALLS_AT_A_TIME
from znni.core.errors import RunFailed
from znni.volumes.stored import errors_as

API = "kubernetes.dask.org/v1"
SCHEDULER_PORT = 8786
WEB_PORT = 8787  # of the scheduler; the operator asks there whether it is ready
IDLE_SECONDS = 600  # after which the operator deletes a cluster whose coordinator is gone


def started(cluster: Cluster, _folder: str) -> Any:
    """Create the resources of a cluster, and return Dask's object of it.

    Raises:
        ImportError: dask-kubernetes is missing.
        RunFailed: there is no Kubernetes, or no operator.
    """
    from dask_kubernetes.operator import KubeCluster

    first, *others = manifests(cluster, f"znni-{uuid4().hex[:8]}", CALLS_AT_A_TIME)
    with ExitStack() as failing, errors_as(_failed):
        made = KubeCluster(custom_cluster_spec=first, namespace=cluster.namespace, quiet=True)
        failing.callback(made.close)
        for group, other in zip(cluster.groups[1:], others, strict=True):
            made.add_worker_group(group.name, custom_spec=other["spec"]["worker"])
        failing.pop_all()
    return made


def _failed(error: Exception) -> RunFailed:
    return RunFailed(
        f"Kubernetes does not start the cluster: {type(error).__name__}: {error}; check that "
        f"kubectl get pods works here, and that the operator of dask-kubernetes is installed"
    )


def manifests(cluster: Cluster, name: str, threads: int) -> list[dict[str, Any]]:
    """Return the resources of a cluster.

    Args:
        cluster: of kind ``kubernetes``.
        name: the name of the first resource, with which those of the others begin.
        threads: calls that a worker answers at a time.

    Returns:
        A ``DaskCluster`` with the first group, and a ``DaskWorkerGroup`` for each other one.
    """
    first, *others = cluster.groups
    whole = {
        "apiVersion": API,
        "kind": "DaskCluster",
        "metadata": {"name": name, "namespace": cluster.namespace},
        "spec": {
            "idleTimeout": IDLE_SECONDS,
            "worker": _workers(cluster, first, threads),
            "scheduler": _scheduler(cluster, name),
        },
    }
    groups = [
        {
            "apiVersion": API,
            "kind": "DaskWorkerGroup",
            "metadata": {"name": f"{name}-{group.name}", "namespace": cluster.namespace},
            "spec": {"cluster": name, "worker": _workers(cluster, group, threads)},
        }
        for group in others
    ]
    return [whole, *groups]


def _workers(cluster: Cluster, group: Group, threads: int) -> dict[str, Any]:
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if group.cores:
        requests["cpu"] = str(group.cores)
    if group.ram:
        requests["memory"] = limits["memory"] = str(group.ram)
    if group.gpus:
        limits["nvidia.com/gpu"] = str(group.gpus)
    container = {
        "name": "worker",
        "image": cluster.image,
        "args": [
            "dask", "worker", "--name", f"{group.name}-$(DASK_WORKER_NAME)",
            "--nthreads", str(threads), "--memory-limit", "0", "--no-dashboard",
        ],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": [
            {"name": claim, "mountPath": path} for claim, path in cluster.claims.items()
        ],
    }  # fmt: skip
    volumes = [
        {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in cluster.claims
    ]
    return {"replicas": group.count, "spec": {"containers": [container], "volumes": volumes}}


def _scheduler(cluster: Cluster, name: str) -> dict[str, Any]:
    ports = {"tcp-comm": SCHEDULER_PORT, "http-dashboard": WEB_PORT}
    container = {
        "name": "scheduler",
        "image": cluster.image,
        "args": ["dask", "scheduler", "--host", "0.0.0.0", "--no-dashboard"],
        "ports": [
            {"name": port, "containerPort": number, "protocol": "TCP"}
            for port, number in ports.items()
        ],
        "readinessProbe": {
            "httpGet": {"port": "http-dashboard", "path": "/health"},
            "initialDelaySeconds": 1,
            "periodSeconds": 2,
        },
    }
    return {
        "spec": {"containers": [container]},
        "service": {
            "type": "ClusterIP",
            "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
            "ports": [
                {"name": port, "protocol": "TCP", "port": number, "targetPort": port}
                for port, number in ports.items()
            ],
        },
    }
