// Asynchronous copies from device memory to shared memory (cp.async), on every GPU since Ampere.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Starts a copy of a word.
__device__ __forceinline__ void copy_word(unsigned target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}

// Starts a copy of a word, or of zero if the word is not `present`.
__device__ __forceinline__ void copy_word_or_zero(unsigned target, const void* source,
                                                  bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
               "r"(present ? 4 : 0)
               : "memory");
}

// Starts a copy of 16 bytes.
__device__ __forceinline__ void copy_16_bytes(unsigned target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Starts a copy of 16 bytes, or of zeros if the bytes are not `present`.
__device__ __forceinline__ void copy_16_bytes_or_zeros(unsigned target, const void* source,
                                                       bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(present ? 16 : 0)
               : "memory");
}

// Ends a group of copies: those that the thread has started since the last group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until the thread's copies have arrived, but for the last groups of them.
template <int GROUPS>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}
