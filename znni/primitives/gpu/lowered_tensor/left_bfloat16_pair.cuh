// The left side of products: numbers as pairs of bfloat16, with the range of float32.

struct Left {
  unsigned high[4], low[4];

  // Takes 4 maps of 2 voxels.
  __device__ __forceinline__ void set(const float (&value)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Halves halves =
          halves_of(value[i / 2 * 4 + i % 2], value[i / 2 * 4 + i % 2 + 2]);
      high[i] = halves.high;
      low[i] = halves.low;
    }
  }

  // Adds all products but those of low halves with low ones, which are below the rounding.
  template <int COUNT>
  __device__ __forceinline__ void multiply_add_to(float (&sum)[COUNT], Side right) {
    multiply_add(sum, high[0], high[1], high[2], high[3], right, true);
    multiply_add(sum, low[0], low[1], low[2], low[3], right, true);
    multiply_add(sum, high[0], high[1], high[2], high[3], right + RIGHT, true);
  }
};
