// Products on tensor cores of every GPU since Ampere (mma.sync), a warp at a time: 16 rows x 16
// numbers times 16 numbers x 8 columns, with sums in float32. Four warps together make what one
// instruction of wgmma makes, with the same numbers in the same registers.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Starts a copy of 16 bytes to shared memory.
__device__ __forceinline__ void copy_16_bytes(unsigned target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Starts a copy of 16 bytes to shared memory, or of zeros if the bytes are not `present`.
__device__ __forceinline__ void copy_16_bytes_or_zeros(unsigned target, const void* source,
                                                       bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(present ? 16 : 0)
               : "memory");
}

// Waits until the thread's copies have arrived, but for the last groups of them.
template <int GROUPS>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
