"""Synthetic microscopy of packed cells, with the true membranes and organelles.

Each volume draws its own anatomy and its own microscope. The anatomy has the size and shape of the
cells, the thickness and contrast of the membranes, and dark organelles whose rims look like
membranes. The microscope has section thickness, blur, uneven illumination, shot noise and read-out
noise. Equal seeds give equal volumes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom
from scipy.spatial import cKDTree

Field = NDArray[np.float32]
Size = tuple[int, int, int]

SECTIONS_AT_ONCE = 16  # of which the distances to the nearest seeds are in memory


@dataclass(frozen=True)
class Cells:
    """A volume and its truth.

    Attributes:
        raw: picture taken by the microscope, (z, y, x).
        boundary: true for membrane voxels, (z, y, x).
        organelle: true for voxels of organelles, vesicles and their rims, (z, y, x).
    """

    raw: NDArray[np.uint8]
    boundary: NDArray[np.bool_]
    organelle: NDArray[np.bool_]


@dataclass(frozen=True)
class Tissue:
    """Tissue under the microscope; lengths are in voxels of the y and x axes.

    Attributes:
        section: thickness of a section, which is the extent of a voxel along z.
        spacing: distance between the seeds of neighbouring cells.
        elongation: number of seeds in a row that the longest cells grow from.
        membrane: mean thickness of a membrane.
        organelles: volume share of the organelles, before those that cross a membrane are cut.
        vesicles: volume share of the vesicles, measured in the same way.
        texture: amplitude of the cytoplasm's grain.
    """

    section: float
    spacing: float
    elongation: int
    membrane: float
    organelles: float
    vesicles: float
    texture: float

    @classmethod
    def draw(cls, random: np.random.Generator) -> Tissue:
        """Draw one kind of tissue at random."""
        isotropic = random.random() < 0.4
        return cls(
            section=1.0 if isotropic else float(np.exp(random.uniform(0, np.log(12)))),
            spacing=float(np.exp(random.uniform(np.log(18), np.log(64)))),
            elongation=int(random.integers(1, 8)),
            membrane=random.uniform(2.2, 5.5),
            organelles=random.uniform(0, 0.12),
            vesicles=random.uniform(0, 0.08),
            texture=random.uniform(0.02, 0.2),
        )


@dataclass(frozen=True)
class Microscope:
    """Imaging of the tissue; the tissue's brightness runs from 0 to 1.

    Attributes:
        blur: standard deviation along z and across it, in voxels.
        shading: amplitude of the uneven illumination.
        flicker: standard deviation of the sections' brightness.
        photons: number of photons per voxel of brightness 1.
        readout: standard deviation of the Gaussian noise.
        gain: grey levels of brightness 1.
    """

    blur: tuple[float, float]
    shading: float
    flicker: float
    photons: float
    readout: float
    gain: float

    @classmethod
    def draw(cls, random: np.random.Generator) -> Microscope:
        """Draw one microscope at random."""
        return cls(
            blur=(random.uniform(0, 0.6), random.uniform(0.4, 1.3)),
            shading=random.uniform(0, 0.25),
            flicker=random.uniform(0, 0.04),
            photons=float(np.exp(random.uniform(np.log(25), np.log(250)))),
            readout=random.uniform(0.02, 0.08),
            gain=random.uniform(170, 300),
        )


def synthetic_cells(seed: int, size: Size) -> Cells:
    """Return a volume of cells."""
    random = np.random.default_rng(seed)
    tissue, microscope = Tissue.draw(random), Microscope.draw(random)
    cell, distance = _pack(random, size, tissue)
    thickness = tissue.membrane * np.exp(0.25 * _smooth(random, size, tissue.section, 30))
    # The distance into the cell, from its membrane. NumPy's types do not know that it is float32.
    depth = (distance - thickness / 2).astype(np.float32, copy=False)
    brightness = _cytoplasm(random, cell, tissue)
    organelle = _add_organelles(random, brightness, depth, tissue)
    membrane = 1 / (1 + np.exp(np.clip(depth / 0.5, -30, 30)))
    # Membranes take up stain unevenly: one may be faint in one place and strong in another.
    stain = np.clip(0.75 + 0.2 * _smooth(random, size, tissue.section, 25), 0.3, 1)
    brightness += membrane * stain * (random.uniform(0.05, 0.2) - brightness)
    raw = _photograph(random, brightness, tissue.section, microscope)
    return Cells(raw, depth <= 0, organelle)


def _pack(
    random: np.random.Generator, size: Size, tissue: Tissue
) -> tuple[NDArray[np.intp], Field]:
    """Return the cell of each voxel, and the voxel's distance to the nearest other cell.

    A cell is the Voronoi region of a row of seeds. Space is warped at the scale of the cells and,
    more finely, at the scale of their wrinkles.
    """
    extent = np.array(size) * (tissue.section, 1, 1)
    margin = 2 * tissue.spacing
    room = np.prod(extent + 2 * margin) / tissue.spacing**3
    rows, cells, count = [], 0, 0
    while count < room:
        length = int(random.integers(1, tissue.elongation + 1))
        steps = random.normal(size=3) + 0.4 * random.normal(size=(length, 3))
        steps *= 0.7 * tissue.spacing / np.linalg.norm(steps, axis=1, keepdims=True)
        start = random.uniform(-margin, extent + margin)
        rows.append(np.column_stack([start + np.cumsum(steps, axis=0), np.full(length, cells)]))
        cells, count = cells + 1, count + length
    seeds, cell_of_seed = np.split(np.concatenate(rows), [3], axis=1)
    # A seed too close to an earlier cell would leave room for membrane only.
    pairs = cKDTree(seeds).query_pairs(0.55 * tissue.spacing, output_type="ndarray")
    crowded = pairs[:, 1][np.diff(cell_of_seed[pairs, 0], axis=1)[:, 0] != 0]
    seeds, cell_of_seed = np.delete(seeds, crowded, 0), np.delete(cell_of_seed, crowded, 0)

    scale = np.array([tissue.section, 1, 1], np.float32)
    where = np.moveaxis(np.indices(size, dtype=np.float32), 0, -1) * scale
    for axis in range(3):
        where[..., axis] += 0.15 * tissue.spacing * _smooth(random, size, tissue.section, 32)
        where[..., axis] += 0.7 * _smooth(random, size, tissue.section, 8)
    owner, distance = np.empty(size, np.intp), np.empty(size, np.float32)
    tree = cKDTree(seeds)
    for z in range(0, size[0], SECTIONS_AT_ONCE):
        part = slice(z, z + SECTIONS_AT_ONCE)
        distances, nearest = map(np.asarray, tree.query(where[part], k=6, workers=-1))
        owners = cell_of_seed[nearest, 0].astype(np.intp)
        owner[part] = owners[..., 0]
        other = np.argmax(owners != owners[..., :1], axis=-1)[..., np.newaxis]
        rival = np.take_along_axis(nearest, other, axis=-1)[..., 0]
        gap = np.linalg.norm(seeds[rival] - seeds[nearest[..., 0]], axis=-1)
        rival_distance = np.take_along_axis(distances, other, axis=-1)[..., 0]
        to_plane = (rival_distance**2 - distances[..., 0] ** 2) / np.maximum(2 * gap, 1e-6)
        # The index of the other is 0 if all six belong to one cell.
        distance[part] = np.where(other[..., 0] > 0, to_plane, tissue.spacing)
    return owner, distance


def _cytoplasm(random: np.random.Generator, cell: NDArray[np.intp], tissue: Tissue) -> Field:
    """Return the brightness inside the cells: a level for each cell, and grain of two sizes."""
    level = random.normal(0.62, 0.07, cell.max() + 1).astype(np.float32)
    grain = sum(_smooth(random, cell.shape, tissue.section, scale) for scale in (3, 6))
    brightness: Field = level[cell] + np.float32(tissue.texture / 2) * grain
    return brightness


def _add_organelles(
    random: np.random.Generator, brightness: Field, depth: Field, tissue: Tissue
) -> NDArray[np.bool_]:
    """Draw rimmed ellipsoids into the cells, clear of the membranes, in place.

    Returns:
        An array that is true for their voxels, (z, y, x).
    """
    drawn = np.zeros(brightness.shape, bool)
    for share, low, high in ((tissue.organelles, 5, 10), (tissue.vesicles, 2, 3.5)):
        occupied = 0.0
        while occupied < share * brightness.size * tissue.section:
            axes = random.uniform(low, high, size=3)
            occupied += 4 / 3 * np.pi * axes.prod()
            centre = random.uniform(np.zeros(3), brightness.shape)
            inside, rim = random.normal(0.45, 0.12), random.uniform(0.1, 0.35)
            reach = np.ceil((axes + 2) / (tissue.section, 1, 1))
            start = np.maximum(centre - reach, 0).astype(int)
            stop = np.minimum(centre + reach + 1, brightness.shape).astype(int)
            box = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
            offset = [
                (np.arange(a, b) - c) * s
                for a, b, c, s in zip(start, stop, centre, (tissue.section, 1, 1), strict=True)
            ]
            z, y, x = np.meshgrid(*offset, indexing="ij", sparse=True)
            radius = np.sqrt((z / axes[0]) ** 2 + (y / axes[1]) ** 2 + (x / axes[2]) ** 2)
            beyond = (radius - 1) * axes.mean()  # voxels outside the ellipsoid, nearly
            free = depth[box] > 1
            brightness[box][free & (beyond < 0)] = inside
            brightness[box][free & (np.abs(beyond) < 1)] = rim
            drawn[box] |= free & (beyond < 1)
    return drawn


def _photograph(
    random: np.random.Generator, brightness: Field, section: float, microscope: Microscope
) -> NDArray[np.uint8]:
    """Return the tissue as grey levels: blurred, shaded and noisy."""
    along, across = microscope.blur
    image = gaussian_filter(brightness, (along / section, across, across))
    image *= 1 + microscope.shading * _smooth(random, image.shape, section, 60)
    image += random.normal(0, microscope.flicker, (len(image), 1, 1))
    photons = random.poisson(np.maximum(image, 0.02) * microscope.photons)
    values = photons / microscope.photons + random.normal(0, microscope.readout, image.shape)
    raw: NDArray[np.uint8] = np.clip(np.rint(values * microscope.gain), 0, 255).astype(np.uint8)
    return raw


def _smooth(
    random: np.random.Generator, size: tuple[int, ...], section: float, scale: float
) -> Field:
    """Return smooth noise with features of ``scale`` voxels.

    Its mean is 0, and its standard deviation is about 1.
    """
    extent = np.array(size) * (section, 1, 1)
    coarse = np.ceil(extent / scale).astype(int) + 3
    coarse[0] = min(coarse[0], size[0])  # sections thicker than the scale are independent
    noise = random.standard_normal(coarse, dtype=np.float32)
    fine: NDArray[np.floating] = noise.astype(np.float64)
    for samples, voxels in zip(coarse, size, strict=True):  # the new axis becomes the last one
        fine = np.tensordot(fine, _spline(int(samples), voxels), axes=(0, 0))
    field: Field = fine.astype(np.float32)
    field /= field.std()
    return field


def _spline(samples: int, voxels: int) -> NDArray[np.float64]:
    """Return the matrix (samples, voxels) that interpolates along an axis, by quadratic splines."""
    rows = np.eye(samples)
    return np.stack(
        [zoom(row, voxels / samples, order=2, mode="nearest", prefilter=False) for row in rows]
    )
