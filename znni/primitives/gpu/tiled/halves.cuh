// Numbers as sums of two bfloat16 halves: 16 bits of precision, and the range of float32.

// Two numbers' nearest bfloat16, the first in the lower bits.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

struct Halves {
  unsigned high, low;
};

// The halves of a complex number, real parts in the lower bits.
__device__ __forceinline__ Halves halves_of(float real, float imaginary) {
  const unsigned high = rounded_pair(real, imaginary);
  const unsigned low = rounded_pair(real - __uint_as_float(high << 16),
                                    imaginary - __uint_as_float(high & 0xffff0000u));
  return {high, low};
}
