"""In the place of MONAI's sliding windows: the same call, over the same tensors.

With MONAI it would be

    inferer = monai.inferers.SlidingWindowInferer(roi_size=64, overlap=0.25)
    output = inferer(images, model)

where the model is run on whole windows; here every voxel gets the output of its own field of view,
and the plan decides on windows.
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
