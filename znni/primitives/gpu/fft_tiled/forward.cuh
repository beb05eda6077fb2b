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

#if IS_LONE
// Numbers of a map's spectrum that a lone block keeps, in the order of columns.
constexpr int KEPT = COLUMNS * TILE_X;

// Keeps the spectra of the maps of a turn, each of whose numbers is a Number now.
template <typename Number>
__device__ __forceinline__ void keep_spectra(Number* kept, const float2* exchange, int turn) {
  kept += turn * MAPS * KEPT;
#pragma unroll 4
  for (int i = threadIdx.x; i < MAPS * KEPT; i += THREADS) {
    const int number = i % KEPT, map = i / KEPT;
    const int place = place_of(column_at(number / TILE_X));
    kept[i] = ((const Number*)(exchange + map * MAP_STRIDE + place))[number % TILE_X];
  }
}

// Returns a number of a block's map: the last turn's maps are where they were transformed.
template <typename Number>
__device__ __forceinline__ Number number_at(const Number* kept, const float2* exchange, int map,
                                            int place, int column, int x) {
  if (map / MAPS + 1 < TURNS) return kept[map * KEPT + column * TILE_X + x];
  return ((const Number*)(exchange + map % MAPS * MAP_STRIDE + place))[x];
}
#endif

// Transforms along x. `put(line, values, with_mean)` stores the numbers in the place of the line, in
// the format. The first one may be the mean.
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
    put(line, values, has_mean(column));
  }
}
