// Inverse transforms of products in float16, which are scaled for each tile and each map.

// Reads two numbers at a time: lines begin at different banks for 8 bytes.
struct TakeFloat16 {
  __device__ __forceinline__ void operator()(const float2* line, float* values,
                                             bool with_mean) const {
    const uint2* numbers = (const uint2*)line;
#pragma unroll
    for (int x = 0; x < TILE_X; x += 2) {
      const uint2 two = numbers[x / 2];
      const float2 first = number_of(two.x), second = number_of(two.y);
      values[2 * x] = first.x;
      values[2 * x + 1] = first.y;
      values[2 * x + 2] = second.x;
      values[2 * x + 3] = second.y;
    }
    if (with_mean) {
      values[0] += values[1];
      values[1] = 0.0f;
    }
  }
};

struct ScaledWithBias {
  float scale, bias;
  __device__ __forceinline__ float operator()(float voxel) const {
    return fmaf(voxel, scale, bias);
  }
};

struct ScalesAndBiases {
  float scale_of_tile;
  const float *scales, *biases;
  __device__ __forceinline__ ScaledWithBias operator()(int map) const {
    return {scale_of_tile * scales[map], biases[map]};
  }
};

// Stores a frequency of half of a group's maps at a time.
struct PutFloat16 {
  unsigned* maps[GROUP / 2];
  __device__ __forceinline__ explicit PutFloat16(float2* exchange) {
#pragma unroll
    for (int i = 0; i < GROUP / 2; ++i)
      maps[i] = (unsigned*)shared_of(exchange, threadIdx.x % 2 * (GROUP / 2) + i);
  }
  __device__ __forceinline__ void operator()(int place, int number, uint4 piece) const {
    place = 2 * place + number / 2;
    maps[0][place] = piece.x;
    maps[1][place] = piece.y;
    maps[2][place] = piece.z;
    maps[3][place] = piece.w;
  }
};

// Returns the scale of a tile's products, from all its exponents.
__device__ __forceinline__ float scale_of(const signed char* exponents, int count) {
  int largest = LEAST_EXPONENT;
  for (int i = threadIdx.x % 32; i < count; i += 32) largest = max(largest, exponents[i]);
  return power_of_two(__reduce_max_sync(~0u, largest) - LEFT_SHIFT);
}

#if IS_LONE
// Copies a lone block's part of the spectra.
__device__ __forceinline__ void take_part(float2* exchange, const char* spectra,
                                          long long line_bytes, int rank) {
  typedef Together<MAPS * NUMBER_BYTES>::Type Type;
  for_each_part<1>(line_bytes, [=](int, long long offset, int place, int, int x) {
    const Type numbers = __ldg((const Type*)(spectra + offset) + rank);
#pragma unroll
    for (int map = 0; map < MAPS; ++map)
      ((unsigned*)(exchange + map * MAP_STRIDE + place))[x] = ((const unsigned*)&numbers)[map];
  });
}
#endif

KERNEL_OF_CLUSTERS inverse_transform(const char* __restrict__ spectra, int groups,
                                     float* __restrict__ image, long long image_stride,
                                     long long map_stride, long long z_stride,
                                     long long y_stride, int maps, int size_z, int size_y,
                                     int size_x, int tiles_z, int tiles_y, int tiles_x,
                                     long long first_tile, int tiles,
                                     const float* __restrict__ biases,
                                     const float* __restrict__ scales,
                                     const signed char* __restrict__ exponents, int exponents_count,
                                     int exponents_stride) {
  extern __shared__ float2 exchange[];
  const Share share = share_of((maps + GROUP - 1) / GROUP);
  if (share.tile >= tiles) return;
  spectra += offset_of(share.tile, 0, FREQUENCIES / LINE, groups) + share.group * GROUP_BYTES;
  const long long line_bytes = (long long)ROWS * groups * GROUP_BYTES;
#if IS_LONE
  take_part(exchange, spectra, line_bytes, share.rank);
#else
  scatter_from_spectra(spectra, line_bytes, share.rank, PutFloat16(exchange));
#endif
  cluster_barrier();
  transform_along_x(exchange, TakeFloat16());
  __syncthreads();
  transform_along_y(exchange);
  const float scale = scale_of(exponents + (long long)share.tile * exponents_stride,
                               exponents_count);
  __syncthreads();
  const Place place = place_of(first_tile + share.tile, tiles_z, tiles_y, tiles_x);
  const int first_map = share.group * GROUP + share.rank * MAPS;
  float* origin = image + place.image * image_stride + first_map * map_stride +
                  place.z * z_stride + place.y * y_stride + place.x;
  transform_along_z(exchange,
                    {origin, map_stride, z_stride, int(y_stride), maps - first_map, size_z - place.z,
                     size_y - place.y, size_x - place.x},
                    ScalesAndBiases{scale, scales + first_map, biases + first_map});
}
