// Inverse transforms of products in float32.

struct TakeFloats {
  __device__ __forceinline__ void operator()(const float2* line, float* values, bool) const {
#pragma unroll
    for (int x = 0; x < TILE_X; ++x) {
      const float2 value = line[x];
      values[2 * x] = value.x;
      values[2 * x + 1] = value.y;
    }
  }
};

struct WithBias {
  float bias;
  __device__ __forceinline__ float operator()(float voxel) const { return voxel + bias; }
};

struct Biases {
  const float* biases;
  __device__ __forceinline__ WithBias operator()(int map) const { return {biases[map]}; }
};

// Stores two of a group's maps at a time.
struct PutFloats {
  float2* maps[2];
  __device__ __forceinline__ explicit PutFloats(float2* exchange) {
    const int pair = threadIdx.x % 2 * 2;
    maps[0] = shared_of(exchange, pair);
    maps[1] = shared_of(exchange, pair + 1);
  }
  __device__ __forceinline__ void operator()(int place, int number, uint4 piece) const {
    place += number / 2;
    maps[0][place] = make_float2(__uint_as_float(piece.x), __uint_as_float(piece.y));
    maps[1][place] = make_float2(__uint_as_float(piece.z), __uint_as_float(piece.w));
  }
};

#if IS_LONE
// Copies a lone block's part of the spectra: PARTS pieces of a frequency, of one or two maps each.
__device__ __forceinline__ void take_part(float2* exchange, const char* spectra,
                                          long long line_bytes, int rank) {
  constexpr int PARTS = MAPS > 2 ? MAPS / 2 : 1, OF_PART = MAPS / PARTS;
  typedef Together<OF_PART * NUMBER_BYTES>::Type Type;
  for_each_part<PARTS>(line_bytes, [=](int part, long long offset, int place, int, int x) {
    const Type numbers = __ldg((const Type*)(spectra + offset) + rank * PARTS + part);
#pragma unroll
    for (int map = 0; map < OF_PART; ++map)
      exchange[(part * OF_PART + map) * MAP_STRIDE + place + x] = ((const float2*)&numbers)[map];
  });
}
#endif

KERNEL_OF_CLUSTERS inverse_transform(const char* __restrict__ spectra, int groups,
                                     float* __restrict__ image, long long image_stride,
                                     long long map_stride, long long z_stride,
                                     long long y_stride, int maps, int size_z, int size_y,
                                     int size_x, int tiles_z, int tiles_y, int tiles_x,
                                     long long first_tile, int tiles,
                                     const float* __restrict__ biases) {
  extern __shared__ float2 exchange[];
  const Share share = share_of((maps + GROUP - 1) / GROUP);
  if (share.tile >= tiles) return;
  spectra += offset_of(share.tile, 0, FREQUENCIES / LINE, groups) + share.group * GROUP_BYTES;
  const long long line_bytes = (long long)ROWS * groups * GROUP_BYTES;
#if IS_LONE
  take_part(exchange, spectra, line_bytes, share.rank);
#else
  scatter_from_spectra(spectra, line_bytes, share.rank, PutFloats(exchange));
#endif
  cluster_barrier();
  transform_along_x(exchange, TakeFloats());
  __syncthreads();
  transform_along_y(exchange);
  __syncthreads();
  const Place place = place_of(first_tile + share.tile, tiles_z, tiles_y, tiles_x);
  const int first_map = share.group * GROUP + share.rank * MAPS;
  float* origin = image + place.image * image_stride + first_map * map_stride +
                  place.z * z_stride + place.y * y_stride + place.x;
  transform_along_z(exchange,
                    {origin, map_stride, z_stride, int(y_stride), maps - first_map, size_z - place.z,
                     size_y - place.y, size_x - place.x},
                    Biases{biases + first_map});
}
