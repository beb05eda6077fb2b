"""Rows of results as Markdown tables, and the columns of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from bench.record import Kind, Row

NOTE = "note"
ABSENT = "-"

# The format of a cell. If there are several, the first one counts whose values the row has.
Forms: TypeAlias = str | tuple[str, ...]
RATIO = ("{ratio_to_torch:.2f} ({ratio_lowest:.2f} to {ratio_highest:.2f})", "{ratio_to_torch:.2f}")


def as_is(*names: str) -> dict[str, Forms]:
    """Return columns whose titles are the names of their values, without a format."""
    return {name: f"{{{name}}}" for name in names}


LAYER_COLUMNS = as_is("kernel", "pool", "maps", "input", "name")
MEMORY_COLUMNS: dict[str, Forms] = {
    "error": "{error:.1e}",
    "peak MiB": "{peak_mib:,.0f}",
    "declared MiB": "{declared_mib:,.0f}",
    "resident MiB": "{resident_mib:,.0f}",
}
PHASE_COLUMNS: dict[str, Forms] = {
    phase: f"{{{phase}_seconds:.2f}}"
    for phase in ("start", "planning", "opening", "building", "running", "finishing", "exit")
}
RUN_COLUMNS: dict[str, Forms] = {**as_is("network", "volume", "storing"), "GPUs": "{gpus}"}
NETWORK_COLUMNS: dict[str, Forms] = {
    **as_is("network", "name", "patch", "output", "layout"),
    "s": "{seconds:.3f}",
    "first s": "{first_seconds:.2f}",
    "layers s": "{layers_seconds:.3f}",
    "rounds": "{rounds}",
    "spread": "{spread:.0%}",
    "voxels/s": "{voxels_per_s:,.0f}",
    "predicted": "{predicted_voxels_per_s:,.0f}",
    "x torch fp32": RATIO,
    "znni over it": "{gain:.2f}",
    "error": "{error:.1e}",
    "peak GiB": "{peak_gib:.2f}",
    "declared GiB": "{declared_gib:.2f}",
    "arrays GiB": "{least_gib:.2f}",
}

# The columns by their titles. A column that no row fills is left out.
COLUMNS: dict[Kind | Literal["choices"], dict[str, Forms]] = {
    "layer": {
        **LAYER_COLUMNS,
        "s": "{seconds:.4f}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "x torch, same class": RATIO,
        "direct Gflop/s": "{gflops_direct:,.0f}",
        "model s": "{model_seconds:.4f}",
        "+-": "{model_error:.0%}",
        "floor s": "{floor_seconds:.4f} ({bound})",
        "achieved": "{achieved:.0%}",
        **MEMORY_COLUMNS,
    },
    "cluster-scaling": {
        **as_is("network", "name", "device", "workers", "patch", "blocks", "rounds"),
        "spread": "{spread:.0%}",
        "blocks/s": "{blocks_per_s:.3f}",
        "of linear": "{efficiency:.1%}",
        "whole run, blocks/s": "{whole_blocks_per_s:.3f}",
        "coordinator, ms a block": "{coordinator_ms_a_block:.1f}",
        "Dask, MiB": "{dask_mib:.0f}",
    },
    "cluster-simulation": {
        **as_is("name", "workers"),
        "s a block": "{kinds}",
        "noise": "{noise:.0%}",
        "blocks": "{blocks:,}",
        "simulated s": "{simulated_seconds:,.0f}",
        "efficiency": "{efficiency:.1%}",
        "s": "{seconds:.1f}",
        "blocks/s": "{blocks_per_s:,.0f}",
        "peak MiB": "{peak_mib:.1f}",
        "bytes a block": "{bytes_a_block:.1f}",
        "grown MiB": "{growth_mib:.1f}",
        "to go on, s": "{resume_seconds:.1f}",
    },
    "end-to-end": {
        **RUN_COLUMNS,
        "s": "{seconds:.1f}",
        "predicted s": "{predicted_seconds:.1f}",
        "running s": "{running_seconds:.1f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "of a GPU": "{efficiency:.0%}",
        "peak GiB": "{peak_gib:.2f}",
        "declared GiB": "{declared_gib:.2f}",
        "GPU peak GiB": "{gpu_peak_gib:.2f}",
        "GPU declared GiB": "{gpu_declared_gib:.2f}",
    },
    "fleet": {
        **as_is("workers", "volume", "patch", "patches"),
        "resting s": "{patch_seconds:.2f}",
        "s": "{seconds:.2f}",
        "beyond s": "{beyond_seconds:.2f}",
        "building s": "{building_seconds:.2f}",
        "running, beyond s": "{running_beyond_seconds:.2f}",
        "finishing s": "{finishing_seconds:.2f}",
        "reading s": "{reading_seconds:.2f}",
        "writing s": "{writing_seconds:.2f}",
        "processor s": "{processor_seconds:.2f}",
        "function": "{function}",
        "threads there, s": "{function_seconds:.2f}",
    },
    "phases": {
        **as_is("command", "network", "volume"),
        "limit": "{limit}",
        "runs": "{rounds}",
        "s": "{seconds:.2f}",
        "processor s": "{processor_seconds:.2f}",
        "spread": "{spread:.0%}",
        "predicted s": "{predicted_seconds:.2f}",
        **PHASE_COLUMNS,
    },
    "many-volumes": {
        **as_is("network", "device", "size", "files", "volumes"),
        "ms a volume": "{ms:.1f}",
        "in layers": "{layers_ms:.1f}",
        "overhead": "{overhead_ms:.1f}",
    },
    "gpu-exercise": {
        **as_is("name", "layer", "input"),
        "error": "{error:.1e}",
        "promised": "{promised:.0e}",
        "passed": "{passed}",
    },
    "gpu-memory": {
        "name": "{name}",
        "kept MiB": "{kept_mib:.0f}",
        "so far MiB": "{so_far_mib:.0f}",
    },
    "gpu-chips": {
        **as_is("kernel", "maps", "input", "chip", "name", "pass"),
        "ns/voxel": "{ns_per_voxel:.3f}",
        "spread": "{spread:.0%}",
        "of own": "{share_of_own:.0%}",
        "x torch": "{over_peer:.2f}",
        "direct Tflop/s": "{tflops_direct:,.1f}",
        "its Tflop/s": "{tflops_declared:,.1f}",
        "bytes a voxel": "{voxel_bytes:,.0f}",
        "operations a voxel": "{voxel_flops:,.0f}",
        "floor ns": "{floor_ns:.3f} ({bound})",
        "achieved": "{achieved:.0%}",
        **MEMORY_COLUMNS,
    },
    "gpu-layers": {
        **LAYER_COLUMNS,
        "ns/voxel": "{ns_per_voxel:.3f}",
        "spread": "{spread:.0%}",
        "direct Tflop/s": "{tflops_direct:,.1f}",
        "model s": "{model_seconds:.5f}",
        "+-": "{model_error:.0%}",
        "traffic ns": "{traffic_ns:.3f}",
        "floor ns": "{floor_ns:.3f} ({bound})",
        "achieved": "{achieved:.0%}",
        **MEMORY_COLUMNS,
    },
    "handing-out": {
        **as_is("name", "threads", "input"),
        "rounds": "{handed_rounds:,}",
        "tasks": "{handed_tasks:,}",
        "fastest ms": "{fastest_ms:.3f}",
        "median ms": "{median_ms:.3f}",
        "model ms": "{model_ms:.3f}",
        "but for Python ms": "{computing_ms:.3f}",
        "us a task": "{us_a_task:.1f}",
    },
    "kills": {
        **as_is("network", "output", "patch", "blocks"),
        "s": "{seconds:.2f}",
        "kills": "{kills}",
        "before a block": "{before_first_block}",
        "ledgers that were wrong": "{wrong_ledgers}",
        "identical outputs": "{identical}",
    },
    "ledger": {
        **as_is("network", "output", "patch", "blocks"),
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
    "evaluations": {
        **as_is("figure", "case", "name", "family"),
        "s": "{seconds:.2e}",
        "spread": "{spread:.0%}",
        "s an image": "{image_seconds:.2e}",
        "GiB": "{memory_gib:.3f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "the paper's": "{published_voxels_per_s:,.0f}",
        "x": "{gain:.2f}",
        "predicted s": "{predicted_seconds:.2e}",
        "predicted x": "{predicted_gain:.2f}",
        "x in the paper": "{published_gain:.0f}",
        "of peak": "{share_of_peak:.0%}",
    },
    "engine-curves": {
        **as_is("kernel", "maps", "size", "images", "engines"),
        "fastest s": "{seconds:.2e}",
        "its MiB": "{workspace_mib:,.1f}",
    },
    "micro-batches": {
        **as_is("kernel", "maps", "input"),
        "limit on": "{limit_on}",
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
    "network": NETWORK_COLUMNS,
    "gpu-networks": NETWORK_COLUMNS,
    "unets": {
        "network": "{network}",
        "name": ("{name}", "{processor}"),
        "window": "{window}",
        "windows": "{windows}",
        "batch": "{batch}",
        "class": "{accuracy}",
        "s": "{seconds:.4f}",
        "predicted s": "{predicted_seconds:.4f}",
        "layers s": "{layers_seconds:.4f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "error": "{error:.1e}",
        "allowed GiB": "{allowed_gib:.0f}",
        "declared GiB": "{declared_gib:.2f}",
        "peak GiB": "{peak_gib:.2f}",
        "skipped": "{skipped}",
    },
    "seams": {
        **as_is("network", "name", "volume", "tile"),
        "s": "{seconds:.1f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "tilings differ by": "{seams:.1e}",
    },
    "nnunet": {
        **as_is("name", "volume", "window", "mirror", "folds", "rounds"),
        "s": "{seconds:.1f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "peak GiB": "{peak_gib:.2f}",
        "import s": "{import_seconds:.0f}",
        "labels apart": "{labels_apart:,}",
        "by at most": "{largest_gap:.1e}",
    },
    "cases": {
        **as_is("name", "configuration", "scan", "volume"),
        "s": "{seconds:.1f}",
        "peak GiB": "{peak_gib:.2f}",
        "nnU-Net s": "{nnunet_seconds:.1f}",
        "its peak GiB": "{nnunet_peak_gib:.2f}",
        "labels apart": "{labels_apart:,}",
        "near-ties": "{ties:,}",
        "by at most": "{largest_gap:.1e}",
        "probabilities differ by": "{difference:.1e}",
        "apart from float16 sums": "{apart_from_float16:,}",
        "same geometry": "{same_geometry}",
        "same type": "{same_type}",
    },
    "killed-labels": {
        **as_is("name", "classes", "window", "overlap", "block"),
        "recomputation": "{recomputation:.2f}",
        "s": "{seconds:.0f}",
        "predicted s": "{predicted_seconds:.0f}",
        "allowed GiB": "{allowed_gib:.2f}",
        "promised GiB": "{declared_gib:.2f}",
        "peak GiB": "{peak_gib:.2f}",
        "kills": "{kills}",
        "peak of killed runs GiB": "{peak_killed_gib:.2f}",
        "s with kills": "{seconds_killed:.0f}",
        "labels found": "{labels_found}",
        "voxels apart": "{voxels_apart:,}",
    },
    "labels-memory": {
        **as_is("name", "classes", "window", "overlap", "volume"),
        "killed beyond GiB": "{allowed_gib:.0f}",
        "peak GiB": "{peak_gib:.2f}",
        "GPU peak GiB": "{gpu_peak_gib:.2f}",
        "s": "{seconds:.0f}",
        "labels apart from znni's": "{labels_apart:,}",
        "1024^3 would take GiB": "{large_gib:.0f}",
    },
    "sliding-windows": {
        **as_is("network", "name", "volume", "output", "window", "overlap", "mirror", "batch"),
        "s": "{seconds:.1f}",
        "first s": "{first_seconds:.1f}",
        "work s": "{work_seconds:.2f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "busy after the first blocks": "{busy_in_words}",
        "peak GiB": "{peak_gib:.2f}",
        "GPU peak GiB": "{gpu_peak_gib:.2f}",
        "differs from znni by": "{difference:.1e}",
        "labels apart from znni's": "{labels_apart:.1e}",
    },
    "models": {
        **as_is("name"),
        "parameters": "{parameters:,}",
        "given as": "{source}",
        "computed by": "{computed_by}",
        **as_is("volume", "window"),
        "from float32": "{error:.1e}",
        "from float64": "{error64:.1e}",
        "MONAI from float64": "{monai_error64:.1e}",
        "s": "{seconds:.2f}",
        "MONAI s": "{monai_seconds:.2f}",
        "times": "{speedup:.1f}",
    },
    "gpu-models": {
        **as_is("name"),
        "parameters": "{parameters:,}",
        **as_is("volume", "window", "engine"),
        "ms a window": "{window_ms:.2f}",
        "from float64": "{error:.1e}",
        "s to get ready": "{ready_seconds:.1f}",
        "s": "{seconds:.2f}",
    },
    "import-families": {
        **as_is("name"),
        "parameters": "{parameters:,}",
        "given as": "{source}",
        "for an input of": "{size}",
        **as_is("result"),
        "compared with": "{runtime}",
        "error": "{error:.1e}",
    },
    "predictors": {
        **as_is("name", "overlap", "mirror", "classes", "cases"),
        "largest error": "{error:.1e}",
        "voxels": "{voxels:,}",
        "labels apart": "{labels_apart:,}",
        "of these, ties": "{ties:,}",
    },
    "profile": {
        **as_is("network", "patch", "layer", "primitive", "input", "runs"),
        "s": "{seconds:.3f}",
        "share": "{share:.0%}",
        "predicted s": "{predicted_seconds:.3f}",
        "built-in s": "{built_in_seconds:.3f}",
        "alone s": "{alone_seconds:.3f}",
        "alone off": "{alone_off:+.1%}",
        "spread": "{spread:.0%}",
        "Gflop/s": "{gflops:,.0f}",
        "GB/s": "{gbytes:,.0f}",
        "floor s": "{floor_seconds:.3f}",
        "bound": "{bound}",
        "achieved": "{achieved:.0%}",
    },
    "scaling": {
        **as_is("work", "name", "threads"),
        "s": "{seconds:.4f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "speed-up": "{speedup:.2f}",
        "efficiency": "{efficiency:.0%}",
        "achieved": "{achieved:.0%}",
        "speed-up of floors": "{floor_speedup:.2f}",
    },
    "top-plans": {
        **as_is("network", "costs", "rank", "patch", "patches"),
        "s": "{seconds:.2f}",
        "predicted s": "{predicted_seconds:.2f}",
        "rounds": "{rounds}",
        "spread": "{spread:.0%}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "time off": "{off:+.1%}",
        "machine slower": "{drift:+.1%}",
        "off beside it": "{off_now:+.1%}",
        "beside the first": "{beside_first:+.1%}",
        "regret": "{regret:.1%}",
        "held out": "{regret_held_out:+.1%}",
        "+-": "{regret_error:.1%}",
        "declared GiB": "{declared_gib:.2f}",
    },
    "default-memory": {
        "million voxels": "{voxels_m:.0f}",
        **as_is("limit", "plan"),
        "warm GiB": "{warm_gib:.1f}",
        "declared GiB": "{declared_gib:.2f}",
        "peak GiB": "{peak_gib:.2f}",
        "runs": "{rounds}",
        "s": "{seconds:.1f}",
        "spread": "{spread:.0%}",
        "predicted s": "{predicted_seconds:.1f}",
        "off": "{off:+.0%}",
        "band": "{predicted_error:.0%}",
        "within": "{within_band:.0%}",
        "over the best limit": "{over_best:+.1%}",
    },
    "search-compared": {
        **as_is("network", "volume", "planned_for", "device"),
        "limit GiB": "{limit_gib:.0f}",
        "before: s": "{predicted_before:.1f}",
        "after: s": "{predicted_after:.1f}",
        "slower": "{slower:.2%}",
        "prices": "{prices_before:,}",
        "prices now": "{prices_after:,}",
        "search: s": "{search_before:.2f}",
        "search now: s": "{search_after:.2f}",
    },
    "search": {
        **as_is("network", "processor"),
        "layers on": "{device}",
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
        **as_is("network", "processor", "primitives", "class", "patch"),
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "layers alone": "{layers_voxels_per_s:,.0f}",
        "ZNNi": "{published_voxels_per_s:,.0f}",
        "declared GiB": "{declared_gib:.2f}",
        "layers": "{layers}",
    },
    "sweeps": {
        **as_is("network", "device", "volume", "class"),
        "memory GiB": "{memory_gib:.0f}",
        "patch without sweeps": "{plain_patch}",
        "done again": "{plain_repeated:.0%}",
        "s": "{plain_seconds:.1f}",
        "chosen patch": "{chosen_patch}",
        **as_is("sweeps"),
        "done again by it": "{chosen_repeated:.0%}",
        "s of it": "{chosen_seconds:.1f}",
    },
    "strategies": {
        **as_is("network", "strategy"),
        "layers on the host": "{theta}",
        "of these computed on the GPU": "{on_gpu}",
        "patch": "{patch}",
        "predicted": "{predicted_voxels_per_s:,.0f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "ZNNi": "{published_voxels_per_s:,.0f}",
        "predicted s": "{predicted_seconds:.2f}",
        "s of the job": "{job_seconds:.2f}",
        "place predicted": "{place_predicted}",
        "place": "{place}",
        "peak GiB": "{peak_gib:.2f}",
        "declared GiB": "{declared_gib:.2f}",
        "of the GPU": "{gpu_declared_gib:.2f}",
        "allowed": "{gpu_limit_gib:.2f}",
        "peak there": "{gpu_peak_gib:.2f}",
    },
    "borders": {
        **as_is("network", "gpu", "threads"),
        "GiB of the GPU": "{gpu_limit_gib:g}",
        "GB/s of the link": "{link_gb_per_s:g}",
        "fastest": "{strategy}",
        "layers on the host": "{theta}",
        "patch": "{patch}",
        "predicted s": "{predicted_seconds:.1f}",
    },
    "shares": {
        **as_is("network", "primitives"),
        "limit GiB": "{limit_gib:.2f}",
        **as_is("shares", "patch"),
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
        **as_is("block", "action", "name"),
        "s": "{seconds:.4f}",
        "spread": "{spread:.0%}",
        "MB/s": "{mb_per_s:,.0f}",
        "voxels/s": "{voxels_per_s:,.0f}",
        "x library": "{gain:.2f}",
    },
    "case-folder": {
        **as_is("name", "device", "cases", "failed"),
        "reading": "{reading_seconds:.2f}",
        "resampling": "{resampling_seconds:.2f}",
        "network": "{network_seconds:.2f}",
        "opening": "{opening_seconds:.3f}",
        "layers": "{layers_seconds:.3f}",
        "finishing": "{finishing_seconds:.3f}",
        "writing": "{writing_seconds:.2f}",
        "done at": "{done_at:.2f}",
        "s": "{seconds:.1f}",
        "first s": "{first_seconds:.1f}",
        "s a case": "{each_seconds:.2f}",
        "layers busy": "{layers_busy:.0%}",
        "GPU busy": "{gpu_busy:.0%}",
        "peak GiB": "{peak_gib:.2f}",
    },
    "whole-scan": {
        **as_is("name", "device", "classes", "networks", "cases", "rounds"),
        "s": "{seconds:.1f}",
        "first s": "{first_seconds:.1f}",
        "peak GiB": "{peak_gib:.2f}",
        "first peak GiB": "{first_peak_gib:.2f}",
        "labels apart": "{labels_apart:.2e}",
    },
    "zarr-libraries": {
        **as_is("codec", "dtype", "files", "action"),
        "znni s": "{znni_seconds:.4f}",
        "spread": "{spread:.0%}",
        "MB/s": "{znni_mb_per_s:,.0f}",
        "zarr-python x": "{batched_ratio:.2f}",
        "fused x": "{fused_ratio:.2f}",
        "TensorStore x": "{tensorstore_ratio:.2f}",
    },
    "resampling": {
        **as_is("case", "maps", "input", "output", "order", "name", "threads"),
        "s": "{seconds:.3f}",
        "spread": "{spread:.0%}",
        "processor s": "{processor_seconds:.3f}",
        "floor s": "{floor_seconds:.3f}",
        "x znni": "{slower:.1f}",
        "differs by": "{difference:.1e}",
        "labels apart": "{labels_apart:,}",
        "scratch MiB": "{scratch_mib:.1f}",
    },
    "choices": {
        **as_is("kernel", "pool", "maps", "input", "picked"),
        "s": "{picked_seconds:.4f}",
        "predicted s": "{predicted_seconds:.4f}",
        "fastest": "{fastest}",
        "its s": "{fastest_seconds:.4f}",
        "its predicted s": "{fastest_predicted_seconds:.4f}",
        "regret": "{regret:.0%}",
        "of": "{of}",
    },
}

# The columns of further tables of the same rows: each is narrow enough to be read.
FURTHER_COLUMNS: dict[Kind | Literal["choices"], tuple[dict[str, Forms], ...]] = {
    "end-to-end": (
        {
            **RUN_COLUMNS,
            **as_is("patch", "patches"),
            **PHASE_COLUMNS,
            "first s": "{first_seconds:.1f}",
            "after the last s": "{ending_seconds:.1f}",
        },
        {
            **RUN_COLUMNS,
            "reading s": "{reading_seconds:.2f}",
            "predicted reading s": "{predicted_reading_seconds:.2f}",
            "writing s": "{writing_seconds:.2f}",
            "predicted writing s": "{predicted_writing_seconds:.2f}",
            "after the first, voxels/s": "{later_voxels_per_s:,.0f}",
            "of a GPU then": "{later_efficiency:.0%}",
            "busy then": "{busy_in_words}",
        },
    ),
    "import-families": (
        {
            **as_is("name"),
            "given as": "{source}",
            "computed by": "{computed_by}",
            "for an input of": "{size}",
            **as_is("volume"),
            "one window from float64": "{window_error:.1e}",
            "volume from MONAI in float64": "{volume_error:.1e}",
        },
    ),
}


def table(kind: Kind | Literal["choices"], rows: list[Row]) -> str:
    """Return rows as a Markdown table, or as several if one would have too many columns.

    The last column of the first table says what was measured in part, or not.
    """
    columns = COLUMNS[kind]
    noted = [row | {NOTE: _note(row)} for row in rows]
    tables = [_table({**columns, NOTE: f"{{{NOTE}}}"}, noted)]
    for further in FURTHER_COLUMNS.get(kind, ()):
        new = [forms for title, forms in further.items() if title not in columns]
        if told := [row for row in rows if any(_filled(it, row) != ABSENT for it in new)]:
            tables.append(_table(further, told))
    return "\n\n".join(tables)


def _note(row: Row) -> str:
    """Return what was measured in part, or not."""
    note = row.get("skipped") or row.get("measured")
    return note if isinstance(note, str) else ""


def _table(columns: Mapping[str, Forms], rows: Sequence[Row]) -> str:
    cells = [[*columns], *([_filled(forms, row) for forms in columns.values()] for row in rows)]
    used = [i for i in range(len(cells[0])) if any(r[i] not in {ABSENT, ""} for r in cells[1:])]
    widths = {i: max(len(row[i]) for row in cells) for i in used}
    lines = ["| " + " | ".join(row[i].ljust(widths[i]) for i in used) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (widths[i] + 2) for i in used) + "|")
    return "\n".join(lines)


def _filled(forms: Forms, row: Row) -> str:
    """Return the cell, or a dash if the row lacks values of every form."""
    values = {name: value for name, value in row.items() if value is not None}
    for form in (forms,) if isinstance(forms, str) else forms:
        try:
            return form.format_map(values)
        except KeyError:
            continue
    return ABSENT


def markdown(lines: Sequence[Mapping[str, str]]) -> str:
    """Return a Markdown table of lines: cells by their titles, which are the same in each line."""
    cells = [lines[0], ["---"] * len(lines[0]), *(line.values() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
