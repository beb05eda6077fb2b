"""What is created in Kubernetes, checked against the schemas of the operator of dask-kubernetes.

The schemas are those of the installed package, or of one that is unpacked in the folder that
``ZNNI_DASK_KUBERNETES`` names: the package asks for libraries that others of the tests refuse.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ruamel.yaml import YAML

from znni.cluster.cluster_file import Cluster, load_cluster
from znni.cluster.dask_clusters import started_cluster
from znni.cluster.kubernetes import manifests
from znni.core.errors import InvalidInput, RunFailed

SCHEMAS = Path("dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds")
FILE = """\
kind: kubernetes
image: example.org/znni:0.2.0
namespace: lab
claims: {data: /data, models: /models}
groups:
  - {name: gpu, count: 4, cores: 16, ram: 56GiB, gpus: 1}
  - {name: cpu-only, count: 2}
"""
KINDS = {"string": str, "integer": int, "object": dict, "array": list, "boolean": bool}


def operator_folder() -> Path | None:
    """Return the folder that holds the package, if there is one."""
    if given := os.environ.get("ZNNI_DASK_KUBERNETES"):
        return Path(given)
    spec = importlib.util.find_spec("dask_kubernetes")
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def schema_of(kind: str) -> dict[str, Any]:
    if (folder := operator_folder()) is None:
        pytest.skip("dask-kubernetes is neither installed nor named by ZNNI_DASK_KUBERNETES")
    text = (folder / SCHEMAS / f"{kind.lower()}.yaml").read_text()
    resource = YAML(typ="safe").load(text)
    assert resource["spec"]["names"]["kind"] == kind
    schema: dict[str, Any] = resource["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def faults(value: Any, schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield what is wrong with a value. Kubernetes drops keys that are unknown; here they fail."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str):
            yield f"{where} is neither a number nor a text"
        return
    kind = schema.get("type")
    if kind and not isinstance(value, KINDS[kind]):
        yield f"{where} is no {kind}"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{where}.{index}")
    elif isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name} is missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in known:
                yield from faults(item, known[name], f"{where}.{name}")
            elif isinstance(others, dict):
                yield from faults(item, others, f"{where}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{where}.{name} is unknown"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    return load_cluster(tmp_path / "cluster.yaml")


@pytest.mark.slow
def test_the_resources_are_of_the_operators_schemas(cluster: Cluster) -> None:
    made = manifests(cluster, "znni-1", threads=4)
    assert [each["kind"] for each in made] == ["DaskCluster", "DaskWorkerGroup"]
    for each in made:
        schema = schema_of(each["kind"])
        assert list(faults({"spec": each["spec"]}, schema)) == []
    broken = {"spec": {**made[0]["spec"], "worker": {"replica": 1}}}
    assert list(faults(broken, schema_of("DaskCluster"))) == [
        ".spec.worker.spec is missing",
        ".spec.worker.replica is unknown",
    ]


def test_each_group_has_workers_of_its_own(cluster: Cluster) -> None:
    whole, other = manifests(cluster, "znni-1", threads=4)
    assert other["metadata"] == {"name": "znni-1-cpu-only", "namespace": "lab"}
    assert other["spec"]["cluster"] == whole["metadata"]["name"]
    pods = [whole["spec"]["worker"], other["spec"]["worker"]]
    assert [pod["replicas"] for pod in pods] == [4, 2]
    gpu, cpu = (pod["spec"]["containers"][0] for pod in pods)
    assert gpu["resources"]["limits"] == {"memory": str(56 * 2**30), "nvidia.com/gpu": "1"}
    assert cpu["resources"] == {"requests": {}, "limits": {}}
    assert "cpu-only-$(DASK_WORKER_NAME)" in cpu["args"]
    for pod in pods:
        mounts = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]} == {"data", "models"}


def test_the_operator_is_asked_for_all_groups(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    class KubeCluster:
        def __init__(self, *, custom_cluster_spec: Any, namespace: str, quiet: bool) -> None:
            assert quiet
            asked.append((custom_cluster_spec["kind"], namespace))

        def add_worker_group(self, name: str, custom_spec: Any) -> None:
            asked.append((name, custom_spec["replicas"]))

        def close(self) -> None:
            asked.append("closed")

    operator = ModuleType("dask_kubernetes.operator")
    operator.KubeCluster = KubeCluster  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_kubernetes", ModuleType("dask_kubernetes"))
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", operator)
    assert isinstance(started_cluster(cluster, str(tmp_path)), KubeCluster)
    assert asked == [("DaskCluster", "lab"), ("cpu-only", 2)]


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (ImportError("x"), InvalidInput, r"pip install 'znni\[kubernetes\]'"),
        (ValueError("no config"), RunFailed, "ValueError: no config; check that kubectl get pods"),
    ],
)
def test_what_is_missing_is_said(
    cluster: Cluster, error: Exception, raised: type[Exception], said: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    operator = ModuleType("dask_kubernetes.operator")
    if not isinstance(error, ImportError):
        operator.KubeCluster = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_kubernetes", ModuleType("dask_kubernetes"))
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", operator)
    with pytest.raises(raised, match=said):
        started_cluster(cluster, str(tmp_path))
