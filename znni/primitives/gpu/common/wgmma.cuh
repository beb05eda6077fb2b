// Products of warpgroups on Hopper's tensor cores (wgmma): how they find their sides in shared
// memory, and when they read and write.

// A side of a product in shared memory. It consists of matrices of 8 rows of 16 bytes: `next_sum`
// bytes lead to the next matrix that the product sums over, `next_row` bytes to the next 8 rows (or
// columns, of a right side). A side plus a number lies so many times 16 bytes further.
typedef unsigned long long Side;

__device__ __forceinline__ Side descriptor(unsigned address, int next_sum, int next_row) {
  return address >> 4 | (Side)(next_sum >> 4) << 16 | (Side)(next_row >> 4) << 32;
}

// Makes what this thread wrote to shared memory visible to tensor cores.
__device__ __forceinline__ void publish_to_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The products that follow may use the registers that were written so far.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
