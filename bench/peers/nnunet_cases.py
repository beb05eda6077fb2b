"""Cases that show what nnU-Net does between a scan and its labels: small networks, small scans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Floats: TypeAlias = tuple[float, float, float]
Extents: TypeAlias = tuple[int, ...]
Labels: TypeAlias = dict[str, int | list[int]]
Affine: TypeAlias = Literal["straight", "oblique", "flipped"]

CT, Z_SCORE = "CTNormalization", "ZScoreNormalization"
TWO_FOLDS, NO_FLIPS = (0, 1), "--disable_tta"
TORCH, TORCH_SEPARATE = "torch", "torch, separate z"
FULL_WINDOW = 128  # voxels along an axis: networks for such windows are as wide as nnU-Net's


@dataclass(frozen=True)
class Scan:
    """A synthetic scan.

    Attributes:
        name: of the case.
        extents: voxels (z, y, x).
        spacing: millimetres (z, y, x).
        affine: how its axes lie in space.
        floating: whether its voxels are float32, else int16.
        cut: whether a corner is zero too, so that cropping leaves zeros.
    """

    name: str
    extents: Extents = (62, 70, 66)
    spacing: Floats = (2.0, 1.7, 1.7)
    affine: Affine = "straight"
    floating: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Stage:
    """One configuration of a plan.

    Attributes:
        name: as nnU-Net calls it.
        spacing: the target, with axes transposed.
        patch: voxels of a window.
        strides: of each stage of the network.
        kernels: of each stage.
        features: of the first stage; each further one has twice as many, up to a limit.
        widest: the limit, in units of the first stage's features.
        residual: whether the encoder is ResEnc M's, else plain.
        previous: the stage whose labels are a further input.
    """

    name: str = "3d_fullres"
    spacing: tuple[float, ...] = (1.5, 1.5, 1.5)
    patch: Extents = (32, 40, 48)
    strides: tuple[Extents, ...] = ((1, 1, 1), (2, 2, 2), (2, 2, 2))
    kernels: tuple[Extents, ...] = ((3, 3, 3), (3, 3, 3), (3, 3, 3))
    features: int = 8
    widest: int = 4
    residual: bool = False
    previous: str = ""


def classes(count: int) -> Labels:
    """Return labels of so many classes, with the background."""
    return {"background": 0, **{f"part{each}": each for each in range(1, count)}}


@dataclass(frozen=True)
class Case:
    """A results folder and the scans that it is applied to.

    Attributes:
        name: of the folder.
        shows: what it is for.
        scans: its inputs.
        stages: configurations, in the order in which they run.
        labels: as in ``dataset.json``.
        regions: ``regions_class_order``.
        normalizations: one for each channel.
        masked: whether a normalization uses voxels other than zero alone.
        transpose: ``transpose_forward``.
        resampling: ``""`` for the default, or the variant by PyTorch.
        folds: those that are averaged.
        reader: the class that reads and writes files.
        ending: of all files.
        options: further ones of nnU-Net's command.
        postprocessing: labels of which all but the largest component is removed, one by one.
    """

    name: str
    shows: str
    scans: tuple[Scan, ...] = (Scan("case"),)
    stages: tuple[Stage, ...] = (Stage(),)
    labels: Labels | None = None
    regions: tuple[int, ...] = ()
    normalizations: tuple[str, ...] = (CT,)
    masked: bool = False
    transpose: tuple[int, int, int] = (0, 1, 2)
    resampling: str = ""
    folds: tuple[int, ...] = (0,)
    reader: str = "SimpleITKIO"
    ending: str = ".nii.gz"
    options: tuple[str, ...] = (NO_FLIPS,)
    postprocessing: tuple[int | tuple[int, ...] | list[int], ...] = ()


FLAT_STAGE = Stage(
    spacing=(4.0, 0.8, 0.8),
    patch=(12, 48, 56),
    strides=((1, 1, 1), (1, 2, 2), (2, 2, 2)),
    kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3)),
)
FLAT_SCAN = Scan("case", (17, 90, 84), (5.0, 0.7, 0.7))
RESIDUAL = Stage(
    residual=True,
    strides=((1, 1, 1), (2, 2, 2), (2, 2, 2), (2, 2, 2)),
    kernels=((3, 3, 3),) * 4,
)
PLANE = Stage("2d", (1.1, 0.9), (56, 64), ((1, 1), (2, 2), (2, 2)), ((3, 3),) * 3)
LOW = Stage("3d_lowres", (2.6, 2.6, 2.6), (24, 32, 32))
HIGH = Stage("3d_cascade_fullres", previous="3d_lowres")
TUMOUR: Labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}

CASES = (
    Case("plain", "PlainConvUNet, 5 classes, resampled along all axes, CT"),
    Case(
        "flat",
        "0.7 x 0.7 x 5 mm: separate z for image and logits, 5 to 4 mm along z",
        (FLAT_SCAN,),
        (FLAT_STAGE,),
    ),
    Case(
        "flat-to-cube",
        "0.7 x 0.7 x 5 mm to 1.5 mm: separate z because of the scan alone",
        (replace(FLAT_SCAN, extents=(13, 80, 76)),),
    ),
    Case(
        "cube-to-flat",
        "1.5 mm to 0.8 x 0.8 x 4 mm: separate z because of the target alone",
        (Scan("case", (40, 50, 44), (1.5, 1.5, 1.5)),),
        (FLAT_STAGE,),
    ),
    Case("resenc", "ResidualEncoderUNet with the blocks of ResEnc M", stages=(RESIDUAL,)),
    Case("two", "2 classes", labels=classes(2)),
    Case("sixty", "60 classes", labels=classes(60)),
    Case("regions", "regions, thresholds of 0.5", labels=TUMOUR, regions=(1, 2, 3)),
    Case(
        "regions-out-of-order",
        "regions whose regions_class_order is not sorted, mirrored",
        labels=TUMOUR,
        regions=(2, 3, 1),
        options=(),
    ),
    Case("folds", "two folds", folds=TWO_FOLDS),
    Case("mirrored", "mirroring along all axes", options=()),
    Case(
        "transposed",
        "transpose_forward 2 0 1, mirrored, the coarse axis first",
        (Scan("case", (84, 90, 17), (0.7, 0.9, 4.5)),),
        (FLAT_STAGE,),
        transpose=(2, 0, 1),
        options=(),
    ),
    Case(
        "z-score",
        "two channels, z-score over the whole crop",
        (Scan("case", floating=True, cut=True),),
        normalizations=(Z_SCORE, Z_SCORE),
    ),
    Case(
        "z-score-masked",
        "two channels, z-score over voxels other than zero, float32 scans",
        (Scan("case", floating=True, cut=True),),
        normalizations=(Z_SCORE, Z_SCORE),
        masked=True,
    ),
    Case(
        "mixed",
        "channels with CT, rescaling to 0..1 and no normalization",
        normalizations=(CT, "RescaleTo01Normalization", "NoNormalization"),
    ),
    Case(
        "small",
        "scans smaller than a window along all axes, and along one",
        (Scan("all", (13, 17, 20)), Scan("one", (15, 75, 66))),
        options=(),
    ),
    Case(
        "thin",
        "a scan of which cropping leaves one plane, and one of zeros alone",
        (Scan("plane", (6, 40, 46)), Scan("zeros", (5, 40, 46))),
    ),
    Case("torch", "resampled by PyTorch", resampling=TORCH),
    Case(
        "torch-flat",
        "resampled by PyTorch, separate z",
        (FLAT_SCAN,),
        (FLAT_STAGE,),
        resampling=TORCH_SEPARATE,
    ),
    Case("planes", "2d", (Scan("case", (12, 90, 84), (4.0, 0.8, 0.8)),), (PLANE,), options=()),
    Case(
        "planes-cube",
        "2d over a scan with equal spacings: resampled in three dimensions",
        (Scan("case", (20, 60, 66), (1.3, 1.3, 1.3)),),
        (PLANE,),
    ),
    Case("cascade", "3d_lowres, then 3d_cascade_fullres", stages=(LOW, HIGH)),
    Case(
        "cascade-regions",
        "the same with regions",
        stages=(LOW, HIGH),
        labels=TUMOUR,
        regions=(1, 2, 3),
    ),
    Case(
        "affines",
        "scans with oblique and with flipped axes",
        (Scan("oblique", affine="oblique"), Scan("flipped", affine="flipped", floating=True)),
    ),
    Case(
        "unchanged",
        "a scan that has the target spacing: nothing is resampled",
        (Scan("case", (50, 60, 56), (1.5, 1.5, 1.5)),),
    ),
    Case(
        "step",
        "windows that overlap by less: -step_size 0.7",
        options=(NO_FLIPS, "-step_size", "0.7"),
    ),
    Case(
        "nibabel",
        "the reader NibabelIOWithReorient, oblique and flipped axes",
        (Scan("oblique", affine="oblique"), Scan("flipped", affine="flipped")),
        reader="NibabelIOWithReorient",
    ),
    Case("nrrd", "NRRD files", ending=".nrrd"),
    Case("mha", "MHA files, oblique", (Scan("case", affine="oblique"),), ending=".mha"),
    Case("tiff", "TIFF files with spacings beside them", reader="Tiff3DIO", ending=".tif"),
    Case(
        "components",
        "postprocessing.pkl: the largest component of all, then of two labels",
        postprocessing=([1, 2, 3, 4], 2, 3),
    ),
    Case(
        "components-of-regions",
        "postprocessing.pkl with a region",
        labels=TUMOUR,
        regions=(1, 2, 3),
        postprocessing=((1, 2, 3), (2, 3)),
    ),
)
BY_NAME = {case.name: case for case in CASES}


def scan_case(count: int, *, torch: bool, networks: int = 1, window: int = 64) -> Case:
    """Return a case for a scan of one's own, at 1.5 mm.

    Args:
        count: its classes.
        torch: whether PyTorch resamples.
        networks: how many networks there are, a fold each.
        window: voxels of a window along each axis. A network for 128 has 32 to 320 maps, as
            nnU-Net plans it; one for 64 has 4 to 16, so that resampling takes longest.
    """
    stage = Stage(patch=(window,) * 3, features=4)
    if window >= FULL_WINDOW:
        depth = 6
        stage = Stage(
            patch=(window,) * 3, features=32, widest=10, kernels=((3, 3, 3),) * depth,
            strides=((1, 1, 1), *((2, 2, 2),) * (depth - 1)),
        )  # fmt: skip
    return Case(
        f"scan-{count}-{window}-{networks}{'-torch' * torch}",
        f"a scan of one's own, {count} classes at 1.5 mm",
        (), (stage,), classes(count), resampling=TORCH if torch else "",
        folds=tuple(range(networks)), reader="NibabelIO",
    )  # fmt: skip
