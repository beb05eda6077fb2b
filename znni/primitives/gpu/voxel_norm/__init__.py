"""Layer norm over the maps of each voxel, on a GPU."""
