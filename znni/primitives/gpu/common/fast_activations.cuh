// Several sources of a kernel may need this.
#ifndef FAST_ACTIVATIONS
#define FAST_ACTIVATIONS
// Activations in a few instructions without a branch. A branch for each number would take longer than
// all of these.

__device__ __forceinline__ float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

__device__ __forceinline__ float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

// Returns ELU of a number, with a relative error below 1e-5.
__device__ __forceinline__ float fast_elu(float value) {
  const float power = power_of_two(value * 1.44269504f);
  const float slope = fmaf(value, fmaf(value, 0.16666667f, 0.5f), 1.0f);
  const float small = value * (value > 0.0f ? 1.0f : slope);
  return value > -0.03f ? small : power - 1.0f;
}

// Returns GELU of a number, with an error below 8e-7, and below 1e-5 of the number if it is small. GELU is the
// larger of x and 0, less |x| times a share: that of the normal distribution beyond |x|. The polynomial is the
// logarithm of this share to base 2. It is exact for 0, and its weighted squares of errors are the least. For
// larger |x|, the polynomial goes on falling.
__device__ __forceinline__ float fast_gelu(float value) {
  const float size = fabsf(value);
  float sum = fmaf(size, -4.88117521e-4f, 7.19880626e-3f);
  sum = fmaf(size, sum, -5.21468020e-2f);
  sum = fmaf(size, sum, -0.459595715f);
  sum = fmaf(size, sum, -1.15100057f);
  const float beyond = power_of_two(fmaf(size, sum, -1.0f));
  // For an infinite number, the product is 0.
  return fmaxf(value, 0.0f) - fminf(size, 64.0f) * beyond;
}

// Returns GELU of a number by a tanh, with an error below 1e-6: x / (1 + exp(-2 u)).
__device__ __forceinline__ float fast_gelu_tanh(float value) {
  const float u = value * fmaf(value * value, 0.035677408f, 0.79788456f);
  return value * reciprocal(1.0f + power_of_two(u * (-2.0f * 1.44269504f)));
}
#endif
