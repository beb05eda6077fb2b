"""What the reference says of alpha conv(x) + beta y, as cuDNN has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import znni

NET = """\
name: sum
layers:
  - name: y
    conv: {features: 2, kernel: 1}
  - name: scaled
    affine: {}
  - name: made
    conv: {features: 2, kernel: 3, padding: same}
    from: input
  - add: {activation: relu}
    from: [made, scaled]
weights: sum.npz
"""
ALPHA, BETA = 0.5, -2.0


def test_a_layer_may_be_alpha_times_a_convolution_and_beta_times_another_value(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((6, 7, 8), np.float32)
    kernels = generator.standard_normal((2, 1, 3, 3, 3), np.float32)
    factors = np.array([3.0, -1.0], np.float32)
    none = np.zeros(2, np.float32)
    weights = {
        "y": factors.reshape(2, 1, 1, 1, 1),
        "scaled": np.full(2, BETA, np.float32),
        "made": ALPHA * kernels,
    }
    arrays = {f"{name}.weight": array for name, array in weights.items()}
    arrays |= {f"{name}.bias": none for name in weights}
    np.savez(tmp_path / "sum.npz", **arrays)
    (tmp_path / "sum.yaml").write_text(NET)
    out = np.zeros((2, *x.shape), np.float32)
    znni.infer(x, tmp_path / "sum.yaml", out, device="cpu", costs="built-in")
    around = np.lib.stride_tricks.sliding_window_view(np.pad(x, 1), (3, 3, 3))
    made = np.einsum("zyxabc,fabc->fzyx", around, kernels[:, 0])
    expected = np.maximum(ALPHA * made + BETA * factors[:, None, None, None] * x, 0)
    np.testing.assert_allclose(out, expected, atol=1e-4)
