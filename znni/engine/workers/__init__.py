"""Several GPUs: one process for each, fed by the process that reads and writes."""
