// Products of four warps with the interface of wgmma.cuh: 64 rows in registers, the right side in
// shared memory.

// A right side in shared memory. It consists of matrices of 8 columns of 16 bytes: `next_sum` bytes
// lead to the next matrix that a product sums over, `next_row` bytes to the next 8 columns.
struct Side {
  unsigned address;
  int next_sum, next_row;
  // Returns the side that lies so many times 16 bytes further.
  __device__ __forceinline__ Side operator+(int steps) const {
    return {address + 16 * steps, next_sum, next_row};
  }
};

__device__ __forceinline__ Side descriptor(unsigned address, int next_sum, int next_row) {
  return {address, next_sum, next_row};
}

// Shared memory needs no more than the barriers of threads, and products are made in order.
__device__ __forceinline__ void publish_to_tensor_cores() {}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
__device__ __forceinline__ void wait_for_products() {}

// Adds a product to the four warps' sums, or puts it in their place.
template <int COUNT>
__device__ __forceinline__ void multiply_add(float (&sum)[COUNT], unsigned a0, unsigned a1,
                                             unsigned a2, unsigned a3, Side b, bool add) {
  constexpr int EIGHTS = COUNT / 4;
  const int lane = threadIdx.x % 32;
  const unsigned row = b.address + lane % 8 * 16 + lane / 8 % 2 * b.next_sum;
  const unsigned left[4] = {a0, a1, a2, a3};
#pragma unroll
  for (int eight = 0; eight < EIGHTS; eight += 2) {
    if (eight + 1 < EIGHTS) {
      unsigned right[4];
      load_matrices(right, row + (eight + lane / 16) * b.next_row);
      multiply_add(&sum[4 * eight], left, right[0], right[1], add);
      multiply_add(&sum[4 * eight + 4], left, right[2], right[3], add);
    } else {
      unsigned right[2];
      load_matrices(right, row + eight * b.next_row);
      multiply_add(&sum[4 * eight], left, right[0], right[1], add);
    }
  }
}
