// Spectra of a layer's kernels at the frequencies of a tile, in the order of the products.
//
// A kernel has few taps along an axis, so each sum over them is computed term by term. Spectra are
// conjugated, because the layer is a cross-correlation. They are divided by the tile's number of
// voxels, because inverse transforms do not scale.

constexpr int TAPS = KERNEL_Z * KERNEL_Y * KERNEL_X;

// Rows (tap, f) of exp(2 pi i f tap / extent), for z, y and x one after the other.
constexpr int ROOTS_Y = KERNEL_Z * TILE_Z;
constexpr int ROOTS_X = ROOTS_Y + KERNEL_Y * TILE_Y;

__device__ __forceinline__ float2 times(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// A block has one output map and a chunk of four input maps, each with a lane.
extern "C" __global__ void __launch_bounds__(256)
    transform_kernels(const float* __restrict__ weights, int in_maps, int out_maps,
                      const float2* __restrict__ roots, unsigned* __restrict__ spectra, int chunks,
                      int padded_out_maps) {
  extern __shared__ float taps[];  // (tap, lane)
  const int chunk = blockIdx.x % chunks;
  const int out_map = blockIdx.x / chunks;
  for (int i = threadIdx.x; i < 4 * TAPS; i += blockDim.x) {
    const int in_map = in_map_of(chunk, i % 4);
    const bool inside = in_map < in_maps && out_map < out_maps;
    taps[i] = inside ? weights[((long long)out_map * in_maps + in_map) * TAPS + i / 4] : 0.0f;
  }
  __syncthreads();
  const int lane = threadIdx.x % 4;
  for (int number = threadIdx.x / 4; number < COLUMNS; number += blockDim.x / 4) {
    const Column column = column_at(number);
    float2 along_x[KERNEL_X] = {};
    for (int z = 0; z < KERNEL_Z; ++z)
      for (int y = 0; y < KERNEL_Y; ++y) {
        const float2 root = times(roots[z * TILE_Z + column.fz],
                                  roots[ROOTS_Y + y * TILE_Y + column.fy]);
#pragma unroll
        for (int x = 0; x < KERNEL_X; ++x) {
          const float tap = taps[((z * KERNEL_Y + y) * KERNEL_X + x) * 4 + lane];
          along_x[x].x += root.x * tap;
          along_x[x].y += root.y * tap;
        }
      }
    for (int fx = 0; fx < TILE_X; ++fx) {
      float2 sum = {};
#pragma unroll
      for (int x = 0; x < KERNEL_X; ++x) {
        const float2 term = times(roots[ROOTS_X + x * TILE_X + fx], along_x[x]);
        sum.x += term.x;
        sum.y += term.y;
      }
      const float real = sum.x / (TILE_Z * TILE_Y * TILE_X);
      const float imaginary = sum.y / (TILE_Z * TILE_Y * TILE_X);
      const int frequency = number * TILE_X + fx;
      put_kernel_number(spectra, frequency, chunk, chunks, out_map, padded_out_maps, lane, real,
                        frequency == MEAN ? rest_of(real) : imaginary);
    }
  }
}
