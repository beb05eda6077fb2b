"""Replace MONAI's sliding-window inferer: the same call, with the same tensors.

With MONAI, the call is

    inferer = monai.inferers.SlidingWindowInferer(roi_size=64, overlap=0.25)
    output = inferer(images, model)

MONAI runs the model on whole windows. znni gives every voxel the output of its own field of view,
and its plan chooses the windows.
"""

from __future__ import annotations

import torch
from torch import nn

import znni


def main() -> None:
    """Run a small network over a batch of two images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 2, 3),
        nn.Softmax(dim=1),
    ).eval()
    images = torch.rand(2, 1, 24, 32, 40)

    inferer = znni.SlidingWindowInferer(threads=2)
    with torch.no_grad():
        output = inferer(images, model)
        one = model(images[:1, :, 8:16, 8:16, 8:16])[0, :, 0, 0, 0]  # the window of one voxel
    print(f"{tuple(images.shape)} to {tuple(output.shape)}")
    centre = output[0, :, 11, 11, 11]
    print(f"the model at one voxel: {one.tolist()}\nin the dense output:    {centre.tolist()}")
    assert torch.allclose(one, centre, atol=1e-5)


if __name__ == "__main__":
    main()
