// A left side of products: numbers as sums of two bfloat16 halves, of the range of float32.

// Two numbers' nearest bfloat16, the first in the lower bits.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

struct Left {
  unsigned high[4], low[4];

  // Of 4 maps of 2 voxels.
  __device__ __forceinline__ void set(const float (&value)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float first = value[i / 2 * 4 + i % 2], second = value[i / 2 * 4 + i % 2 + 2];
      high[i] = rounded_pair(first, second);
      low[i] = rounded_pair(first - __uint_as_float(high[i] << 16),
                            second - __uint_as_float(high[i] & 0xffff0000u));
    }
  }

  // Adds the products of high halves, and of high ones with low ones: the rest is nothing.
  template <int COUNT>
  __device__ __forceinline__ void multiply_add_to(float (&sum)[COUNT], unsigned long long right) {
    multiply_add(sum, high[0], high[1], high[2], high[3], right, true);
    multiply_add(sum, low[0], low[1], low[2], low[3], right, true);
    multiply_add(sum, high[0], high[1], high[2], high[3], right + RIGHT, true);
  }
};
