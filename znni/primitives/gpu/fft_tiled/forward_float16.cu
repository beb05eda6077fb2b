// Forward transforms to spectra in float16, and the exponents of groups of maps.

constexpr int WARPS = THREADS / 32;

struct Largest {
  float value = 0.0f;
  __device__ __forceinline__ void include(float voxel) { value = fmaxf(value, fabsf(voxel)); }
};

// Stores two numbers at a time: lines begin at different banks for 8 bytes.
struct PutFloat16 {
  float scale;
  __device__ __forceinline__ unsigned rounded(const float* number) const {
    return rounded_pair(number[0] * scale, number[1] * scale);
  }
  __device__ __forceinline__ void operator()(float2* line, float* values, bool with_mean) const {
    uint2* numbers = (uint2*)line;
    if (with_mean) values[1] = rest_of(values[0] * scale) / scale;
#pragma unroll
    for (int x = 0; x < TILE_X; x += 2)
      numbers[x / 2] = make_uint2(rounded(values + 2 * x), rounded(values + 2 * x + 2));
  }
};

// Returns the largest of the numbers that all warps of the cluster have found.
__device__ __forceinline__ unsigned largest_of(const unsigned* of_warps) {
  unsigned largest = 0;
  for (int i = threadIdx.x % 32; i < CLUSTER * WARPS; i += 32)
    largest = max(largest, of_block(of_warps, i / WARPS)[i % WARPS]);
  return __reduce_max_sync(~0u, largest);
}

// Copies spectra from the shared memory of all blocks of the cluster. Each block writes a share: a
// frequency of half of the maps of the group at a time.
__device__ __forceinline__ void gather_to_spectra(float2* exchange, char* spectra,
                                                  long long line_bytes, int rank) {
  const unsigned* maps[GROUP / 2];
#pragma unroll
  for (int i = 0; i < GROUP / 2; ++i)
    maps[i] = (const unsigned*)shared_of(exchange, threadIdx.x % 2 * (GROUP / 2) + i);
  const Piece piece = first_piece(rank);
  spectra += offset_of(piece, line_bytes);
#pragma unroll 4
  for (int column = piece.column; column < COLUMNS; column += COLUMN_STEP) {
    const int place = 2 * place_of(column_at(column)) + piece.number / 2;
    *(uint4*)spectra =
        make_uint4(maps[0][place], maps[1][place], maps[2][place], maps[3][place]);
    spectra += COLUMN_STEP * (TILE_X / LINE) * line_bytes;
  }
}

#if IS_LONE
// Copies a lone block's part of the spectra.
__device__ __forceinline__ void put_part(const float2* exchange, char* spectra,
                                         long long line_bytes, int rank) {
  typedef Together<OWN_MAPS * NUMBER_BYTES>::Type Type;
  const unsigned* kept = (const unsigned*)(exchange + MAPS * MAP_STRIDE);
  for_each_part<1>(line_bytes, [=](int, long long offset, int place, int column, int x) {
    Type numbers;
#pragma unroll
    for (int map = 0; map < OWN_MAPS; ++map)
      ((unsigned*)&numbers)[map] = number_at(kept, exchange, map, place, column, x);
    ((Type*)(spectra + offset))[rank] = numbers;
  });
}
#endif

KERNEL_OF_CLUSTERS forward_transform(const float* __restrict__ image, long long image_stride,
                                     long long map_stride, long long z_stride, long long y_stride,
                                     int maps, int size_z, int size_y, int size_x, int tiles_z,
                                     int tiles_y, int tiles_x, long long first_tile, int tiles,
                                     char* __restrict__ spectra, int groups,
                                     signed char* __restrict__ exponents, int exponents_stride) {
  extern __shared__ float2 exchange[];
  __shared__ unsigned of_warps[WARPS];
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
    Largest largest;
    transform_along_z(exchange,
                      {origin + turn * MAPS * map_stride, map_stride, z_stride, y_stride,
                       maps - first_map - turn * MAPS, size_z - place.z, size_y - place.y,
                       size_x - place.x},
                      largest);
    const unsigned of_warp = __reduce_max_sync(~0u, __float_as_uint(largest.value));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    cluster_arrive();
    __syncthreads();
    transform_along_y(exchange);
    __syncthreads();
    cluster_wait();
    const int exponent = exponent_above(largest_of(of_warps));
    if ((IS_LONE || share.rank == 0) && threadIdx.x == 0) {
      // A group has an exponent, or each turn of each of its blocks has one.
      constexpr int OF_GROUP = IS_LONE ? RANKS * TURNS : 1;
      const int used = (maps + GROUP - 1) / GROUP * OF_GROUP;
      const int own = share.group * OF_GROUP + (IS_LONE ? share.rank * TURNS + turn : 0);
      signed char* of_tile = exponents + (long long)share.tile * exponents_stride;
      of_tile[own] = exponent;
      for (int other = used + own; other < exponents_stride; other += used)
        of_tile[other] = LEAST_EXPONENT;  // beyond the last group
    }
    transform_along_x(exchange, PutFloat16{power_of_two(LEFT_SHIFT - exponent)});
#if IS_LONE
    if (turn + 1 < TURNS) {
      __syncthreads();
      keep_spectra((unsigned*)(exchange + MAPS * MAP_STRIDE), exchange, turn);
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
