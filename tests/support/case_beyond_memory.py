"""Compute a whole case whose scan is several times as large as the memory that is allowed.

    python tests/support/case_beyond_memory.py --folder FOLDER --size 640 1280 1280 --ram 1GiB

This writes a scan of float32 and a network, computes the labels in a child, and prints the most
memory that it took before each step. ``--kind`` says what the case has: components to remove,
probabilities to save, or a cascade of two networks with many weights, the second one for CT.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
from case_scans import NET, weights_file

from znni.cases.case import Case, predict
from znni.cases.forecast import forecast
from znni.cases.previous_stage import PreviousNetwork
from znni.components.rules import KeepLargest
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.inference.session import Session
from znni.network.network_file import load_network
from znni.network.weights import weights_for

CHANGES = {
    "name: organs": "name: organs\nweights: w.npz",
    "[{mean: 20, std: 50, clip: [-100, 150]}]": "zscore, within: nonzero",
    "spacing: 2,1.5,1.5": "spacing: 8,8,8",
    "[6, 8, 8]": "[32, 32, 32]",
}
# Changes of the network above for a cascade. Its weights take 85 MB.
STAGES = {
    "conv: {features: 4, kernel: 3, padding: same}": "conv: {features: 32, kernel: 8, stride: 8}",
    "conv: {features: 3, kernel: 3, padding: same}": (
        "conv: {features: 1024, kernel: 1}\n"
        "  - conv: {features: 768, kernel: 3, padding: same}\n"
        "  - conv: {features: 3, kernel: 1}\n"
        "  - upsample: {factor: 8}"
    ),
}
SECOND = {
    "in_features: 1": "in_features: 3",
    "zscore, within: nonzero": "[{mean: 0, std: 300}, {mean: 0, std: 1}, {mean: 0, std: 1}]",
    "{channels: [CT]}": "{channels: [CT], previous_stage: {name: low, labels: [1, 2]}}",
    "weights: w.npz": "weights: second.npz",
}
KINDS = ("components", "probabilities", "cascade")
BLOBS = 16  # voxels along an axis


def write_scan(path: Path, size: tuple[int, ...]) -> None:
    """Write blobs with noise, plane by plane, within a border of zeros."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(size[::-1])
    header.set_data_dtype(np.float32)
    header.set_zooms((1, 1, 1))
    header.set_sform(np.eye(4), 1)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(header.binaryblock + bytes(4))
        for z in range(size[0]):
            coarse = generator.normal(size=(size[1] // BLOBS + 1, size[2] // BLOBS + 1)) * 300
            plane = coarse.repeat(BLOBS, 0)[: size[1]].repeat(BLOBS, 1)[:, : size[2]]
            plane = (plane + generator.integers(-20, 20, plane.shape)).astype("<f4")
            border = size[1] // 10
            plane[:border] = plane[:, -border:] = 0
            file.write((plane if 2 < z < size[0] - 3 else np.zeros_like(plane)).data)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Return a network's text with changes."""
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def most_memory() -> int:
    """Return the most bytes that this process took, and begin to measure again."""
    taken = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    Path("/proc/self/clear_refs").write_text("5")
    return int(taken) * 1024


def compute(ram: str, kind: str) -> None:
    """Compute the case in this folder, and print the peak of each step as JSON."""
    network = load_network(Path("organs.yaml"))
    options = Options(limits=Choices(device="cpu", ram=ram, costs="built-in"))
    case, rules = Case((Path("scan.nii"),), Path("seg.nii.gz")), list[KeepLargest]()
    if kind == "components":
        rules.append(KeepLargest(labels=(1,)))
    elif kind == "probabilities":
        case = replace(case, probabilities=Path("seg.npz"))
    else:
        earlier = PreviousNetwork(network, weights_for(network, None, None))
        case, network = replace(case, previous=earlier), load_network(Path("second.yaml"))
    foreseen = forecast(case, network, options, rules)
    peaks: dict[str, int] = {}
    steps = ["start"]

    def progress(step: str, _done: int, _total: int) -> None:
        if step != steps[-1]:
            peaks[steps[-1]] = max(most_memory(), peaks.get(steps[-1], 0))
            steps.append(step)

    weights = weights_for(network, None, None)
    report = predict(case, network, weights, Session(), options, progress, rules)
    peaks[steps[-1]] = max(most_memory(), peaks.get(steps[-1], 0))
    told = {
        "scan": Path("scan.nii").stat().st_size,
        "allowed": foreseen.allowed,
        "declared": foreseen.memory,
        "peaks": peaks,
        "seconds": report.seconds,
    }
    print(json.dumps(told))
    sys.exit(max(peaks.values()) > foreseen.allowed)


def main() -> None:
    """Prepare the files, and have a child compute the case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the files")
    parser.add_argument("--size", type=int, nargs=3, default=(640, 1280, 1280), help="of the scan")
    parser.add_argument("--ram", default="1GiB", help="allowed")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="what the case has")
    parser.add_argument("--computing", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.chdir(asked.folder)
    if asked.computing:
        compute(asked.ram, asked.kind)
    text = changed(NET, CHANGES | (STAGES if asked.kind == "cascade" else {}))
    Path("organs.yaml").write_text(text)
    weights_file(Path("w.npz"), load_network(Path("organs.yaml")))
    if asked.kind == "cascade":
        Path("second.yaml").write_text(changed(text, SECOND))
        weights_file(Path("second.npz"), load_network(Path("second.yaml")))
    write_scan(Path("scan.nii"), tuple(asked.size))
    line = [sys.executable, __file__, "--folder", ".", "--ram", asked.ram, "--kind", asked.kind]
    line.append("--computing")
    sys.exit(subprocess.run(line, check=False).returncode)


if __name__ == "__main__":
    main()
