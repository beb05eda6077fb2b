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

// Returns GELU of a number, with an error below 5e-7. It is the larger of x and 0, less |x| times the share of
// the normal distribution beyond |x|. The polynomial is the logarithm of that share to base 2, fitted by least
// squares that are weighted for the smallest error of GELU. Beyond all |x| that matter it falls on.
__device__ __forceinline__ float fast_gelu(float value) {
  const float size = fabsf(value);
  float sum = fmaf(size, -4.73294058e-4f, 7.08446186e-3f);
  sum = fmaf(size, sum, -5.1827170e-2f);
  sum = fmaf(size, sum, -0.459992647f);
  sum = fmaf(size, sum, -1.15078783f);
  const float beyond = power_of_two(fmaf(size, sum, -1.00003767f));
  // For an infinite number, the product is 0.
  return fmaxf(value, 0.0f) - fminf(size, 64.0f) * beyond;
}

// Returns GELU of a number by a tanh, with an error below 1e-6: x / (1 + exp(-2 u)).
__device__ __forceinline__ float fast_gelu_tanh(float value) {
  const float u = value * fmaf(value * value, 0.035677408f, 0.79788456f);
  return value * reciprocal(1.0f + power_of_two(u * (-2.0f * 1.44269504f)));
}
#endif
