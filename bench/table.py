"""Rows of results as Markdown."""

from __future__ import annotations

from typing import Literal, TypeAlias

from bench.record import Kind, Row

# Titles, and how each is made of a row's values: by the first form whose values the row has.
Forms: TypeAlias = str | tuple[str, ...]
RATIO = ("{ratio_to_torch:.2f} ({ratio_lowest:.2f} to {ratio_highest:.2f})", "{ratio_to_torch:.2f}")
COLUMNS: dict[Kind | Literal["choices"], dict[str, Forms]] = {
    "layer": {
        "kernel": "{kernel}",
        "pool": "{pool}",
        "maps": "{maps}",
        "input": "{input}",
        "name": "{name}",
        "s": "{seconds:.4f}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "x torch, same class": RATIO,
        "direct Gflop/s": "{gflops_direct:,.0f}",
        "model s": "{model_seconds:.4f}",
        "+-": "{model_error:.0%}",
        "floor s": "{floor_seconds:.4f} ({bound})",
        "achieved": "{achieved:.0%}",
        "error": "{error:.1e}",
        "peak MiB": "{peak_mib:,.0f}",
        "declared MiB": "{declared_mib:,.0f}",
        "resident MiB": "{resident_mib:,.0f}",
    },
    "gpu-kernels": {
        "name": "{name}",
        "layer": "{layer}",
        "input": "{input}",
        "kernel": "{kernel}",
        "launches": "{launches}",
        "ms": "{milliseconds:.3f}",
        "read GB": "{read_gb:.3f}",
        "written GB": "{written_gb:.3f}",
        "Gflop": "{gflop:,.0f}",
        "floor ms": "{floor_milliseconds:.3f} ({bound})",
        "achieved": "{achieved:.0%}",
        "busy": "{busy:.0%}",
    },
    "gpu-exercise": {
        "name": "{name}",
        "layer": "{layer}",
        "input": "{input}",
        "error": "{error:.1e}",
        "promised": "{promised:.0e}",
        "passed": "{passed}",
    },
    "gpu-layers": {
        "kernel": "{kernel}",
        "pool": "{pool}",
        "maps": "{maps}",
        "input": "{input}",
        "name": "{name}",
        "ns/voxel": "{ns_per_voxel:.3f}",
        "spread": "{spread:.0%}",
        "direct Tflop/s": "{tflops_direct:,.1f}",
        "traffic ns": "{traffic_ns:.3f}",
        "floor ns": "{floor_ns:.3f} ({bound})",
        "achieved": "{achieved:.0%}",
        "error": "{error:.1e}",
        "peak MiB": "{peak_mib:,.0f}",
        "declared MiB": "{declared_mib:,.0f}",
        "resident MiB": "{resident_mib:,.0f}",
    },
    "gpu-networks": {
        "network": "{network}",
        "name": "{name}",
        "patch": "{patch}",
        "layout": "{layout}",
        "s": "{seconds:.3f}",
        "layers s": "{layers_seconds:.3f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "znni over it": "{gain:.2f}",
        "error": "{error:.1e}",
        "peak GiB": "{peak_gib:.2f}",
        "declared GiB": "{declared_gib:.2f}",
    },
    "kills": {
        "network": "{network}",
        "output": "{output}",
        "patch": "{patch}",
        "blocks": "{blocks}",
        "s": "{seconds:.2f}",
        "kills": "{kills}",
        "before a block": "{before_first_block}",
        "ledgers that were wrong": "{wrong_ledgers}",
        "identical outputs": "{identical}",
    },
    "ledger": {
        "network": "{network}",
        "output": "{output}",
        "patch": "{patch}",
        "blocks": "{blocks}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "with s": "{with_seconds:.3f}",
        "without s": "{without_seconds:.3f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "slower": "{slower:+.1%}",
        "fastest slower": "{fastest_slower:+.1%}",
        "in its code s": "{ledger_seconds:.4f}",
        "share": "{share:.2%}",
    },
    "micro-batches": {
        "kernel": "{kernel}",
        "maps": "{maps}",
        "input": "{input}",
        "limit MiB": "{limit_mib:,.0f}",
        "pieces": "{division}",
        "chosen": "{chosen}",
        "s": "{seconds:.4f}",
        "spread": "{spread:.0%}",
        "x undivided": "{gain:.2f}",
        "model s": "{model_seconds:.4f}",
        "workspace MiB": "{workspace_mib:,.0f}",
        "resident MiB": "{resident_mib:,.0f}",
    },
    "network": {
        "network": "{network}",
        "name": "{name}",
        "patch": "{patch}",
        "layout": "{layout}",
        "s": "{seconds:.2f}",
        "first s": "{first_seconds:.2f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "x torch fp32": RATIO,
        "error": "{error:.1e}",
        "peak GiB": "{peak_gib:.2f}",
        "declared GiB": "{declared_gib:.2f}",
        "arrays GiB": "{least_gib:.2f}",
    },
    "profile": {
        "network": "{network}",
        "patch": "{patch}",
        "layer": "{layer}",
        "primitive": "{primitive}",
        "input": "{input}",
        "runs": "{runs}",
        "s": "{seconds:.3f}",
        "share": "{share:.0%}",
        "predicted s": "{predicted_seconds:.3f}",
        "built-in s": "{built_in_seconds:.3f}",
        "Gflop/s": "{gflops:,.0f}",
        "GB/s": "{gbytes:,.0f}",
        "floor s": "{floor_seconds:.3f}",
        "bound": "{bound}",
        "achieved": "{achieved:.0%}",
    },
    "scaling": {
        "work": "{work}",
        "name": "{name}",
        "threads": "{threads}",
        "s": "{seconds:.4f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "speed-up": "{speedup:.2f}",
        "efficiency": "{efficiency:.0%}",
        "achieved": "{achieved:.0%}",
    },
    "top-plans": {
        "network": "{network}",
        "costs": "{costs}",
        "rank": "{rank}",
        "patch": "{patch}",
        "patches": "{patches}",
        "s": "{seconds:.2f}",
        "predicted s": "{predicted_seconds:.2f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "time off": "{off:+.1%}",
        "regret": "{regret:.1%}",
        "declared GiB": "{declared_gib:.2f}",
    },
    "search": {
        "network": "{network}",
        "processor": "{processor}",
        "threads": "{threads}",
        "limit GiB": "{limit_gib:.2f}",
        "pieces": "{division}",
        "s": "{seconds:.1f}",
        "calls priced": "{calls}",
        "patch": "{patch}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "declared GiB": "{declared_gib:.2f}",
    },
    "machine-plans": {
        "network": "{network}",
        "processor": "{processor}",
        "primitives": "{primitives}",
        "patch": "{patch}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "ZNNi": "{published_voxels_per_s:,.0f}",
        "declared GiB": "{declared_gib:.2f}",
        "layers": "{layers}",
    },
    "strategies": {
        "network": "{network}",
        "strategy": "{strategy}",
        "layers on the host": "{theta}",
        "of these computed on the GPU": "{on_gpu}",
        "patch": "{patch}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "ZNNi": "{published_voxels_per_s:,.0f}",
        "declared GiB": "{declared_gib:.2f}",
        "of the GPU": "{gpu_declared_gib:.2f}",
        "allowed": "{gpu_limit_gib:.2f}",
        "peak there": "{gpu_peak_gib:.2f}",
    },
    "shares": {
        "network": "{network}",
        "primitives": "{primitives}",
        "limit GiB": "{limit_gib:.2f}",
        "shares": "{shares}",
        "patch": "{patch}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "joint over it, predicted": "{predicted_gain:.2f}",
        "s": "{seconds:.3f}",
        "model s": "{patch_seconds:.3f}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "joint over it": "{gain:.2f}",
        "declared GiB": "{declared_gib:.2f}",
    },
    "volumes": {
        "format": "{format}",
        "type": "{dtype}",
        "block": "{block}",
        "action": "{action}",
        "name": "{name}",
        "s": "{seconds:.4f}",
        "spread": "{spread:.0%}",
        "MB/s": "{mb_per_s:,.0f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "x library": "{gain:.2f}",
    },
    "choices": {
        "kernel": "{kernel}",
        "pool": "{pool}",
        "maps": "{maps}",
        "input": "{input}",
        "picked": "{picked}",
        "s": "{picked_seconds:.4f}",
        "predicted s": "{predicted_seconds:.4f}",
        "fastest": "{fastest}",
        "its s": "{fastest_seconds:.4f}",
        "its predicted s": "{fastest_predicted_seconds:.4f}",
        "regret": "{regret:.0%}",
        "of": "{of}",
    },
}

NOTE = "note"
ABSENT = "-"


def table(kind: Kind | Literal["choices"], rows: list[Row]) -> str:
    """Rows as a Markdown table; a last column says what was measured in part, or not at all."""
    cells = [[*COLUMNS[kind], NOTE]]
    for row in rows:
        note = row.get("skipped") or row.get("measured")
        cells.append([_filled(forms, row) for forms in COLUMNS[kind].values()])
        cells[-1].append(note if isinstance(note, str) else "")
    used = [i for i in range(len(cells[0])) if any(r[i] not in {ABSENT, ""} for r in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells) for i in used}
    lines = ["| " + " | ".join(row[i].ljust(widths[i]) for i in used) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (widths[i] + 2) for i in used) + "|")
    return "\n".join(lines)


def _filled(forms: Forms, row: Row) -> str:
    """The cell, or a dash where the row lacks values of every form."""
    values = {name: value for name, value in row.items() if value is not None}
    for form in (forms,) if isinstance(forms, str) else forms:
        try:
            return form.format_map(values)
        except KeyError:
            continue
    return ABSENT
