"""Where voxels come from and go to. A file format is one module."""
