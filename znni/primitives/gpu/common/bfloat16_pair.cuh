// A float32 number as the sum of two bfloat16: 16 bits of precision, and the range of float32.

// The nearest bfloat16 of two numbers, the first in the lower bits.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

struct Halves {
  unsigned high, low;
};

// The high and the low halves of two numbers, those of the first in the lower bits.
__device__ __forceinline__ Halves halves_of(float first, float second) {
  const unsigned high = rounded_pair(first, second);
  const unsigned low = rounded_pair(first - __uint_as_float(high << 16),
                                    second - __uint_as_float(high & 0xffff0000u));
  return {high, low};
}
