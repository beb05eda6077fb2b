// Several sources of a kernel may need this.
#ifndef LARGER
#define LARGER
// Returns the larger of two numbers, or NaN if one of them is NaN.
__device__ __forceinline__ float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a > b || a != a ? a : b;
#endif
}
#endif
