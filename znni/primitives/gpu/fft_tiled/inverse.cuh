// Inverse transforms: a cluster takes a group of maps of one tile's product back to the image.
//
// Only the VALID_Z x VALID_Y x VALID_X voxels that the convolution's output has are computed.

// Copies spectra to the shared memory of all blocks of the cluster. Each block reads a share.
// `put(place, number, piece)` stores a piece of the column that begins at a place. The first pieces
// are on their way while the other blocks start, before which their shared memory is not there.
template <typename Put>
__device__ __forceinline__ void scatter_from_spectra(const char* spectra, long long line_bytes,
                                                     int rank, Put put) {
  constexpr int AHEAD = COLUMN_TURNS < 8 ? COLUMN_TURNS : 8;
  const Piece first = first_piece(rank);
  const long long step = COLUMN_STEP * (TILE_X / LINE) * line_bytes;
  spectra += offset_of(first, line_bytes);
#pragma unroll
  for (int turn = 0; turn < COLUMN_TURNS; turn += AHEAD) {
    uint4 pieces[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
      if (first.column + (turn + i) * COLUMN_STEP < COLUMNS)
        pieces[i] = __ldg((const uint4*)(spectra + i * step));
    spectra += AHEAD * step;
    if (turn == 0) cluster_meet();
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int column = first.column + (turn + i) * COLUMN_STEP;
      if (column < COLUMNS) put(place_of(column_at(column)), first.number, pieces[i]);
    }
  }
}

// Transforms along x, in place. In planes that are conjugate to themselves it also fills the rows
// that were left out. `take(line, values, with_mean)` reads the numbers, in the format. The first
// one may be the mean.
template <typename Take>
__device__ __forceinline__ void transform_along_x(float2* exchange, Take take) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * COLUMNS; i += THREADS) {
    const Column column = column_at(i % COLUMNS);
    float2* plane = exchange + i / COLUMNS * MAP_STRIDE + column.fz * PLANE_STRIDE;
    float2* line = plane + column.fy * ROW_STRIDE;
    float values[2 * TILE_X];
    take(line, values, has_mean(column));
    inverse_dft_x(values, values);
#pragma unroll
    for (int x = 0; x < VALID_X; ++x) line[x] = make_float2(values[2 * x], values[2 * x + 1]);
    if (column.fz % (TILE_Z / 2) == 0 && column.fy % (TILE_Y / 2) != 0) {
      line = plane + (TILE_Y - column.fy) * ROW_STRIDE;
#pragma unroll
      for (int x = 0; x < VALID_X; ++x) line[x] = make_float2(values[2 * x], -values[2 * x + 1]);
    }
  }
}

// The output of a call, from the place on where a cluster's tile begins in its first map.
struct Image {
  float* origin;
  long long map_stride, z_stride;
  int y_stride, maps, depth, height, width;
};

// Transforms along z, to the image, as far as it goes. `sums(map)` returns a function that scales a
// voxel and adds the bias.
template <typename Sums>
__device__ __forceinline__ void transform_along_z(const float2* exchange, const Image& image,
                                                  Sums sums) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * VALID_Y * VALID_X; i += THREADS) {
    const int x = i % VALID_X;
    const int y = i / VALID_X % VALID_Y;
    const int map = i / (VALID_X * VALID_Y);
    if (x >= image.width || y >= image.height || map >= image.maps) continue;
    const float2* line = exchange + map * MAP_STRIDE + y * ROW_STRIDE + x;
    float spectrum[2 * HALF_Z];
#pragma unroll
    for (int fz = 0; fz < HALF_Z; ++fz) {
      const float2 value = line[fz * PLANE_STRIDE];
      spectrum[2 * fz] = value.x;
      spectrum[2 * fz + 1] = value.y;
    }
    float voxels[VALID_Z];
    inverse_real_dft_z(spectrum, voxels);
    const auto sum = sums(map);
    float* target = image.origin + map * image.map_stride + (long long)y * image.y_stride + x;
#pragma unroll
    for (int z = 0; z < VALID_Z; ++z) {
      if (z < image.depth) *target = activation(sum(voxels[z]));
      target += image.z_stride;
    }
  }
}
