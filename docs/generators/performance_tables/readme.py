"""Tables of the README, from the records of ``bench``."""

from __future__ import annotations

from collections.abc import Callable

from bench.table import markdown
from performance_tables.parts import (
    NETWORKS,
    UNETS,
    Records,
    as_millions,
    beside_ours,
    rows_by_name,
)


def readme_table(records: Records) -> str:
    """Return the four networks against PyTorch, on two cores and on one GPU."""
    lines = []
    for network in NETWORKS:
        cpu = rows_by_name(records["networks-2-cores.json"].rows, network)
        gpu = rows_by_name(records[f"gpu-networks-{network}.json"].rows, network)
        lines.append(
            {
                "network": network,
                "2 CPU cores: znni": as_millions(cpu["znni"]),
                "PyTorch float32": beside_ours(cpu["torch_fp32"], cpu["znni"], as_millions),
                "NVIDIA H200: znni": as_millions(gpu["znni"]),
                "PyTorch tf32": beside_ours(gpu["torch_tf32_fused"], gpu["znni"], as_millions),
            }
        )
    return markdown(lines)


def readme_unets(records: Records) -> str:
    """Return the U-Nets against the fastest peer, OpenVINO, on two cores."""
    lines = []
    for network, title in UNETS.items():
        rows = rows_by_name(records[f"unets-{network}-2-cores.json"].rows, network)
        ours = rows["znni"]
        lines.append(
            {
                "network": title,
                "znni float32": as_millions(ours),
                "OpenVINO float32": beside_ours(rows["openvino fp32"], ours, as_millions),
                "OpenVINO bfloat16": beside_ours(rows["openvino bf16"], ours, as_millions),
            }
        )
    return markdown(lines)


TABLES: dict[str, Callable[[Records], str]] = {
    "readme": readme_table,
    "readme-unets": readme_unets,
}
