// Products of pairs of bfloat16 by warpgroups, whose left side is in shared memory.

// The left side of a group: 8 rows of 32 bytes, then the next 8. Halves are swapped (mode 3).
__device__ __forceinline__ Side left_descriptor(unsigned address) {
  return descriptor(address, 0, 8 * 2 * CHUNK) | 3ull << 62;
}

// Multiplies both halves of a group of the left side by high and by low halves of the right side.
__device__ __forceinline__ void multiply_group(float (&sum)[COLUMNS / 2], unsigned left,
                                               unsigned high, unsigned low, bool add) {
  const Side a = left_descriptor(left);
  multiply_add(sum, a, descriptor(high, 0, 8 * CHUNK), add);
  multiply_add(sum, a, descriptor(low, 0, 8 * CHUNK), true);
}
