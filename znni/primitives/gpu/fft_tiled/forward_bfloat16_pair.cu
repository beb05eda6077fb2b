// Forward transforms to spectra in pairs of bfloat16: first the high halves of a group's 4 maps.

struct AnyRange {
  __device__ __forceinline__ void include(float) {}
};

struct PutHalves {
  __device__ __forceinline__ void operator()(float2* line, const float* values, bool) const {
#pragma unroll
    for (int x = 0; x < TILE_X; ++x) {
      const Halves halves = halves_of(values[2 * x], values[2 * x + 1]);
      line[x] = make_float2(__uint_as_float(halves.high), __uint_as_float(halves.low));
    }
  }
};

// Copies spectra from the shared memory of all blocks of the cluster. Each block writes a share:
// the high or the low halves of a frequency, of all maps of the group at a time.
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

#if IS_LONE
// Returns a half of a number of a block's map: the last turn's maps are where they were
// transformed.
__device__ __forceinline__ unsigned half_at(const unsigned* kept, const float2* exchange, int map,
                                            int half, int place, int column, int x) {
  if (map / MAPS + 1 < TURNS) return kept[2 * (map * KEPT + column * TILE_X + x) + half];
  return ((const unsigned*)(exchange + map % MAPS * MAP_STRIDE + place))[2 * x + half];
}

// Copies a lone block's part of the spectra.
__device__ __forceinline__ void put_part(const float2* exchange, char* spectra,
                                         long long line_bytes, int rank) {
  typedef Together<OWN_MAPS * NUMBER_BYTES / 2>::Type Type;
  const unsigned* kept = (const unsigned*)(exchange + MAPS * MAP_STRIDE);
  for_each_part<2>(line_bytes, [=](int half, long long offset, int place, int column, int x) {
    Type numbers;
#pragma unroll
    for (int map = 0; map < OWN_MAPS; ++map)
      ((unsigned*)&numbers)[map] = half_at(kept, exchange, map, half, place, column, x);
    ((Type*)(spectra + offset + half * (SECTOR / 2)))[rank] = numbers;
  });
}
#endif

KERNEL_OF_CLUSTERS forward_transform(const float* __restrict__ image, long long image_stride,
                                     long long map_stride, long long z_stride, long long y_stride,
                                     int maps, int size_z, int size_y, int size_x, int tiles_z,
                                     int tiles_y, int tiles_x, long long first_tile, int tiles,
                                     char* __restrict__ spectra, int groups) {
  extern __shared__ float2 exchange[];
  const Share share = share_of((maps + GROUP - 1) / GROUP);
  if (share.tile >= tiles) return;
  const int first_map = share.group * GROUP + share.rank * OWN_MAPS;
  const Place place = place_of(first_tile + share.tile, tiles_z, tiles_y, tiles_x);
  const float* origin = image + place.image * image_stride + first_map * map_stride +
                        place.z * z_stride + place.y * y_stride + place.x;
  spectra += offset_of(share.tile, 0, FREQUENCIES / LINE, groups) + share.group * GROUP_BYTES;
  const long long line_bytes = (long long)ROWS * groups * GROUP_BYTES;
#pragma unroll 1
  for (int turn = 0; turn < TURNS; ++turn) {
    AnyRange range;
    transform_along_z(exchange,
                      {origin + turn * MAPS * map_stride, map_stride, z_stride, y_stride,
                       maps - first_map - turn * MAPS, size_z - place.z, size_y - place.y,
                       size_x - place.x},
                      range);
    __syncthreads();
    transform_along_y(exchange);
    __syncthreads();
    transform_along_x(exchange, PutHalves());
#if IS_LONE
    if (turn + 1 < TURNS) {
      __syncthreads();
      keep_spectra(exchange + MAPS * MAP_STRIDE, exchange, turn);
      __syncthreads();
    }
#endif
  }
  cluster_barrier();
#if IS_LONE
  put_part(exchange, spectra, line_bytes, share.rank);
#else
  gather_to_spectra(exchange, spectra, line_bytes, share.rank);
#endif
  cluster_meet();  // keeps this block's shared memory until all have read it
}
