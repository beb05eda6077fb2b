"""Tables that compare znni's performance, from the records of ``bench``: a module for each page."""

from __future__ import annotations

from performance_tables import cpu, gpu, gpu_unets, predictions, readme

TABLES = readme.TABLES | cpu.TABLES | gpu.TABLES | gpu_unets.TABLES | predictions.TABLES
