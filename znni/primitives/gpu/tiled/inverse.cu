// Inverse transforms: a cluster takes a group of maps of one tile's product back to the image.
//
// Only the VALID_Z x VALID_Y x VALID_X voxels that the convolution's output has are computed.

// To the shared memory of all blocks of the cluster, each of which reads a share: two of a group's
// maps at a time.
__device__ __forceinline__ void scatter_from_spectra(float2* exchange, const char* spectra,
                                                     long long line_bytes, int rank) {
  const int pair = threadIdx.x % 2 * 2;
  float2* maps[2] = {shared_of(exchange, pair), shared_of(exchange, pair + 1)};
  const Piece piece = first_piece(rank);
  spectra += offset_of(piece, line_bytes);
#pragma unroll 4
  for (int column = piece.column; column < COLUMNS; column += COLUMN_STEP) {
    const float4 numbers = __ldg((const float4*)spectra);
    const int place = place_of(column_at(column)) + piece.number / 2;
    maps[0][place] = make_float2(numbers.x, numbers.y);
    maps[1][place] = make_float2(numbers.z, numbers.w);
    spectra += COLUMN_STEP * (TILE_X / LINE) * line_bytes;
  }
}

// Along x, in place; of planes that are conjugate to themselves, the row left out too.
__device__ __forceinline__ void transform_along_x(float2* exchange) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * COLUMNS; i += THREADS) {
    const Column column = column_at(i % COLUMNS);
    float2* plane = exchange + i / COLUMNS * MAP_STRIDE + column.fz * PLANE_STRIDE;
    float2* line = plane + column.fy * ROW_STRIDE;
    float values[2 * TILE_X];
#pragma unroll
    for (int x = 0; x < TILE_X; ++x) {
      const float2 value = line[x];
      values[2 * x] = value.x;
      values[2 * x + 1] = value.y;
    }
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

__device__ __forceinline__ void transform_along_y(float2* exchange) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * HALF_Z * VALID_X; i += THREADS) {
    const int x = i % VALID_X;
    const int fz = i / VALID_X % HALF_Z;
    const int map = i / (VALID_X * HALF_Z);
    float2* line = exchange + map * MAP_STRIDE + fz * PLANE_STRIDE + x;
    float values[2 * TILE_Y];
#pragma unroll
    for (int y = 0; y < TILE_Y; ++y) {
      const float2 value = line[y * ROW_STRIDE];
      values[2 * y] = value.x;
      values[2 * y + 1] = value.y;
    }
    inverse_dft_y(values, values);
#pragma unroll
    for (int y = 0; y < VALID_Y; ++y)
      line[y * ROW_STRIDE] = make_float2(values[2 * y], values[2 * y + 1]);
  }
}

// Along z: to the image, as far as it goes, with bias and activation.
__device__ __forceinline__ void transform_along_z(const float2* exchange, float* origin,
                                                  const float* biases, long long map_stride,
                                                  long long z_stride, int y_stride, int maps,
                                                  int depth, int height, int width) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * VALID_Y * VALID_X; i += THREADS) {
    const int x = i % VALID_X;
    const int y = i / VALID_X % VALID_Y;
    const int map = i / (VALID_X * VALID_Y);
    if (x >= width || y >= height || map >= maps) continue;
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
    const float bias = biases[map];
    float* target = origin + map * map_stride + (long long)y * y_stride + x;
#pragma unroll
    for (int z = 0; z < VALID_Z; ++z) {
      if (z < depth) *target = activation(voxels[z] + bias);
      target += z_stride;
    }
  }
}

KERNEL_OF_CLUSTERS inverse_transform(const char* __restrict__ spectra, int groups,
                                     float* __restrict__ image, int maps, int size_z, int size_y,
                                     int size_x, int tiles_z, int tiles_y, int tiles_x,
                                     long long first_tile, int tiles,
                                     const float* __restrict__ biases) {
  extern __shared__ float2 exchange[];
  const Share share = share_of((maps + GROUP - 1) / GROUP);
  if (share.tile >= tiles) return;
  spectra += offset_of(share.tile, 0, FREQUENCIES / LINE, groups) + share.group * GROUP_BYTES;
  const long long line_bytes = (long long)ROWS * groups * GROUP_BYTES;
  if (CLUSTER > 1) cluster_barrier();  // Shared memory is there once its block has begun.
  scatter_from_spectra(exchange, spectra, line_bytes, share.rank);
  cluster_barrier();
  transform_along_x(exchange);
  __syncthreads();
  transform_along_y(exchange);
  __syncthreads();
  const Place place = place_of(first_tile + share.tile, tiles_z, tiles_y, tiles_x);
  const int first_map = share.group * GROUP + share.rank * MAPS;
  const long long z_stride = (long long)size_y * size_x;
  const long long map_stride = size_z * z_stride;
  float* origin = image + ((long long)place.image * maps + first_map) * map_stride +
                  place.z * z_stride + (long long)place.y * size_x + place.x;
  transform_along_z(exchange, origin, biases + first_map, map_stride, z_stride, size_x,
                    maps - first_map, size_z - place.z, size_y - place.y, size_x - place.x);
}
