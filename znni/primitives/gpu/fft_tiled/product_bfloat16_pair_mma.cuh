// Products of pairs of bfloat16 by warps.

__device__ __forceinline__ void publish_to_tensor_cores() {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
__device__ __forceinline__ void wait_for_products() {}

// Multiplies both halves of a group of the left side by high and by low halves of the right side.
// A matrix of the right side serves high and low halves of the left one.
__device__ __forceinline__ void multiply_group(float (&sum)[COLUMNS / 2], unsigned left,
                                               unsigned high, unsigned low, bool add) {
  constexpr int EIGHTS = COLUMNS / 8;
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = matrix % 2 * 8 + lane % 8;
  unsigned voxels[4];
  load_matrices(voxels, left + (2 * row + (matrix / 2 ^ row / 4 % 2)) * CHUNK);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int eight = 0; eight < EIGHTS; eight += 4) {
      const int of_lane = min(eight + matrix, EIGHTS - 1);
      unsigned right[4];
      load_matrices(right, (half ? low : high) + (of_lane * 8 + lane % 8) * CHUNK);
#pragma unroll
      for (int i = 0; i < 4 && eight + i < EIGHTS; ++i)
        multiply_add(&sum[4 * (eight + i)], voxels, right[i], right[i], add || half > 0);
    }
  }
}
