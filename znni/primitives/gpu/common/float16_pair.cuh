// Two float16 in a register.

// The nearest float16 of two numbers, the first in the lower bits.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float2 number_of(unsigned pair) {
  float2 number;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(number.x), "=f"(number.y)
      : "r"(pair));
  return number;
}

// The nearest float16 of what two numbers lost as they were rounded. For a number that is infinite it
// is finite, so that the sum stays what it is.
__device__ __forceinline__ unsigned rounding_of(float low, float high, unsigned rounded) {
  const float2 kept = number_of(rounded);
  return rounded_pair(fminf(low - kept.x, 65504.0f), fminf(high - kept.y, 65504.0f));
}
