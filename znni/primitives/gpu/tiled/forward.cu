// Forward transforms: a cluster takes a group of maps of one tile from the image to their spectra.
//
// Between the passes along z, y and x a tile is in shared memory, (map, fz, y, x). Each number of a
// spectrum is written as two halves that sum to it: of the 4 maps of a group first the high ones.

// Along z: from the image, in which zeros surround what is there.
__device__ __forceinline__ void transform_along_z(float2* exchange, const float* origin,
                                                  long long map_stride, long long z_stride,
                                                  long long y_stride, int maps, int depth,
                                                  int height, int width) {
#pragma unroll 2
  for (int i = threadIdx.x; i < MAPS * TILE_Y * TILE_X; i += THREADS) {
    const int x = i % TILE_X;
    const int y = i / TILE_X % TILE_Y;
    const int map = i / (TILE_X * TILE_Y);
    const bool inside = x < width && y < height && map < maps;
    const float* source = origin + map * map_stride + y * y_stride + x;
    float voxels[TILE_Z];
#pragma unroll
    for (int z = 0; z < TILE_Z; ++z) {
      voxels[z] = inside && z < depth ? __ldg(source) : 0.0f;
      source += z_stride;
    }
    float spectrum[2 * HALF_Z];
    real_dft_z(voxels, spectrum);
    float2* target = exchange + map * MAP_STRIDE + y * ROW_STRIDE + x;
#pragma unroll
    for (int fz = 0; fz < HALF_Z; ++fz)
      target[fz * PLANE_STRIDE] = make_float2(spectrum[2 * fz], spectrum[2 * fz + 1]);
  }
}

__device__ __forceinline__ void transform_along_y(float2* exchange) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * HALF_Z * TILE_X; i += THREADS) {
    const int x = i % TILE_X;
    const int fz = i / TILE_X % HALF_Z;
    const int map = i / (TILE_X * HALF_Z);
    float2* line = exchange + map * MAP_STRIDE + fz * PLANE_STRIDE + x;
    float values[2 * TILE_Y];
#pragma unroll
    for (int y = 0; y < TILE_Y; ++y) {
      const float2 value = line[y * ROW_STRIDE];
      values[2 * y] = value.x;
      values[2 * y + 1] = value.y;
    }
    dft_y(values, values);
#pragma unroll
    for (int y = 0; y < TILE_Y; ++y)
      line[y * ROW_STRIDE] = make_float2(values[2 * y], values[2 * y + 1]);
  }
}

// Along x, in place: numbers become their halves.
__device__ __forceinline__ void transform_along_x(float2* exchange) {
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
#pragma unroll
    for (int x = 0; x < TILE_X; ++x) {
      const Halves halves = halves_of(values[2 * x], values[2 * x + 1]);
      line[x] = make_float2(__uint_as_float(halves.high), __uint_as_float(halves.low));
    }
  }
}

// From the shared memory of all blocks of the cluster, each of which writes a share: the high or
// the low halves of a frequency of all maps of the group at a time.
__device__ __forceinline__ void gather_to_spectra(float2* exchange, char* spectra,
                                                  long long line_bytes, int rank) {
  const unsigned* maps[GROUP];
#pragma unroll
  for (int map = 0; map < GROUP; ++map) maps[map] = (const unsigned*)shared_of(exchange, map);
  const Piece piece = first_piece(rank);
  spectra += offset_of(piece, line_bytes);
#pragma unroll 4
  for (int column = piece.column; column < COLUMNS; column += COLUMN_STEP) {
    const int place = 2 * place_of(column_at(column)) + piece.number;
    *(uint4*)spectra =
        make_uint4(maps[0][place], maps[1][place], maps[2][place], maps[3][place]);
    spectra += COLUMN_STEP * (TILE_X / LINE) * line_bytes;
  }
}

KERNEL_OF_CLUSTERS forward_transform(const float* __restrict__ image, long long image_stride,
                                     long long map_stride, long long z_stride, long long y_stride,
                                     int maps, int size_z, int size_y, int size_x, int tiles_z,
                                     int tiles_y, int tiles_x, long long first_tile, int tiles,
                                     char* __restrict__ spectra, int groups) {
  extern __shared__ float2 exchange[];
  const Share share = share_of((maps + GROUP - 1) / GROUP);
  if (share.tile >= tiles) return;
  const int first_map = share.group * GROUP + share.rank * MAPS;
  const Place place = place_of(first_tile + share.tile, tiles_z, tiles_y, tiles_x);
  const float* origin = image + place.image * image_stride + first_map * map_stride +
                        place.z * z_stride + place.y * y_stride + place.x;
  transform_along_z(exchange, origin, map_stride, z_stride, y_stride, maps - first_map,
                    size_z - place.z, size_y - place.y, size_x - place.x);
  __syncthreads();
  transform_along_y(exchange);
  __syncthreads();
  spectra += offset_of(share.tile, 0, FREQUENCIES / LINE, groups) + share.group * GROUP_BYTES;
  const long long line_bytes = (long long)ROWS * groups * GROUP_BYTES;
  transform_along_x(exchange);
  cluster_barrier();
  gather_to_spectra(exchange, spectra, line_bytes, share.rank);
  if (CLUSTER > 1) cluster_barrier();  // Shared memory is there until all have read it.
}
