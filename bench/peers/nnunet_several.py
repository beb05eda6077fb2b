"""nnU-Net's own command for several networks, one after the other in one process.

nnU-Net's Python runs it: ``python -m bench.peers.nnunet_several INPUT OUT MODEL FOLD...``.
So Python and PyTorch are imported once, as by programs that run several networks over a scan.
"""

from __future__ import annotations

import argparse
import sys


def main() -> None:
    """Run ``nnUNetv2_predict_from_modelfolder`` for each fold as a network of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input")
    parser.add_argument("out")
    parser.add_argument("model")
    parser.add_argument("folds", nargs="+")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()

    import torch
    from nnunetv2.inference.predict_from_raw_data import predict_entry_point_modelfolder

    torch.set_num_interop_threads(1)  # the command sets it too, which PyTorch allows once
    torch.set_num_interop_threads = lambda _: None
    for fold in given.folds:
        sys.argv = [
            "nnUNetv2_predict_from_modelfolder", "-i", given.input, "-o", f"{given.out}/{fold}",
            "-m", given.model, "-f", fold, "-device", given.device, "--disable_tta",
        ]  # fmt: skip
        predict_entry_point_modelfolder()


if __name__ == "__main__":
    main()
