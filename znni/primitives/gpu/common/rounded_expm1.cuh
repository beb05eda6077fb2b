// The exponential less one of a number that is not positive, with a relative error of 4e-5. Near zero,
// two terms of its series do. Both ways are computed, because a branch would take longer.
__device__ __forceinline__ float rounded_expm1(float value) {
  float power, near = fmaf(value, 0.5f * value, value);
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value * 1.44269504f));
  asm volatile("" : "+f"(near));
  return value > -0.015625f ? near : power - 1.0f;
}
