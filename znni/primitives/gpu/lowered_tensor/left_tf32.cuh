// The left side of products: numbers rounded to tf32, with the range of float32.

struct Left {
  unsigned rounded[8];

  // Takes 4 maps of 2 voxels.
  __device__ __forceinline__ void set(const float (&value)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded[i]) : "f"(value[i]));
  }

  template <int COUNT>
  __device__ __forceinline__ void multiply_add_to(float (&sum)[COUNT], Side right) {
    multiply_add(sum, rounded[0], rounded[1], rounded[2], rounded[3], right, true);
    multiply_add(sum, rounded[4], rounded[5], rounded[6], rounded[7], right + RIGHT,
                 true);
  }
};
