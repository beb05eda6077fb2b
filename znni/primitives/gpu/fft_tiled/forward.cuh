// Forward transforms: a cluster takes a group of maps of one tile from the image to their spectra.
//
// Between the passes along z, y and x a tile is in shared memory, (map, fz, y, x).

// The image of a call, from the place on where a cluster's tile begins in its first map.
struct Image {
  const float* origin;
  long long map_stride, z_stride, y_stride;
  int maps, depth, height, width;  // from that place on
};

// Transforms along z, from the image, which zeros surround. `range` sees all voxels.
template <typename Range>
__device__ __forceinline__ void transform_along_z(float2* exchange, const Image& image,
                                                  Range& range) {
#pragma unroll 2
  for (int i = threadIdx.x; i < MAPS * TILE_Y * TILE_X; i += THREADS) {
    const int x = i % TILE_X;
    const int y = i / TILE_X % TILE_Y;
    const int map = i / (TILE_X * TILE_Y);
    const bool inside = x < image.width && y < image.height && map < image.maps;
    const float* source = image.origin + map * image.map_stride + y * image.y_stride + x;
    float voxels[TILE_Z];
#pragma unroll
    for (int z = 0; z < TILE_Z; ++z) {
      voxels[z] = inside && z < image.depth ? __ldg(source) : 0.0f;
      source += image.z_stride;
    }
#pragma unroll
    for (int z = 0; z < TILE_Z; ++z) range.include(voxels[z]);
    float spectrum[2 * HALF_Z];
    real_dft_z(voxels, spectrum);
    float2* target = exchange + map * MAP_STRIDE + y * ROW_STRIDE + x;
#pragma unroll
    for (int fz = 0; fz < HALF_Z; ++fz)
      target[fz * PLANE_STRIDE] = make_float2(spectrum[2 * fz], spectrum[2 * fz + 1]);
  }
}

// Transforms along x. `put(line, values)` stores the numbers in the place of the line, in the
// format.
template <typename Put>
__device__ __forceinline__ void transform_along_x(float2* exchange, Put put) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * COLUMNS; i += THREADS) {
    const Column column = column_at(i % COLUMNS);
    float2* line = exchange + i / COLUMNS * MAP_STRIDE + place_of(column);
    float values[2 * TILE_X];
#pragma unroll
    for (int x = 0; x < TILE_X; ++x) {
      const float2 value = line[x];
      values[2 * x] = value.x;
      values[2 * x + 1] = value.y;
    }
    dft_x(values, values);
    put(line, values);
  }
}
