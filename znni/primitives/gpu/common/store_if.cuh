// Stores of a word without a branch, because a branch would cost more than the store.
__device__ __forceinline__ void store_if(unsigned wanted, float* target, float value) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.f32 [%1], %2;}" ::"r"(wanted),
               "l"(target), "f"(value)
               : "memory");
}

__device__ __forceinline__ void store_if(unsigned wanted, unsigned* target, unsigned bits) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b32 [%1], %2;}" ::"r"(wanted),
               "l"(target), "r"(bits)
               : "memory");
}
