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

// Returns GELU of a number, with an error below 5e-7. With z = |x| / sqrt(2) it is the larger of x and 0,
// less |x| (1 - erf(z)) / 2. The polynomial of 1 - erf(z) is formula 7.1.26 of Abramowitz and Stegun.
__device__ __forceinline__ float fast_gelu(float value) {
  const float size = fabsf(value);
  const float t = reciprocal(fmaf(size, 0.3275911f * 0.70710678f, 1.0f));
  float sum = fmaf(t, 1.061405429f, -1.453152027f);
  sum = fmaf(t, sum, 1.421413741f);
  sum = fmaf(t, sum, -0.284496736f);
  sum = fmaf(t, sum, 0.254829592f);
  const float power = power_of_two(value * value * (-0.5f * 1.44269504f));
  // For an infinite number, the product is 0.
  return fmaxf(value, 0.0f) - fminf(size, 64.0f) * (0.5f * t * sum * power);
}

// Returns GELU of a number by a tanh, with an error below 1e-6: x / (1 + exp(-2 u)).
__device__ __forceinline__ float fast_gelu_tanh(float value) {
  const float u = value * fmaf(value * value, 0.035677408f, 0.79788456f);
  return value * reciprocal(1.0f + power_of_two(u * (-2.0f * 1.44269504f)));
}
#endif
