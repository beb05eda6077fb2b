// Several sources of a kernel may need this.
#ifndef FAST_ELU
#define FAST_ELU
// Returns ELU of a number, with a relative error below 1e-5, in a few instructions without a branch. A
// branch for each number would take longer than all of these.
__device__ __forceinline__ float fast_elu(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.44269504f));
  const float slope = fmaf(value, fmaf(value, 0.16666667f, 0.5f), 1.0f);
  const float small = value * (value > 0.0f ? 1.0f : slope);
  return value > -0.03f ? small : power - 1.0f;
}
#endif
