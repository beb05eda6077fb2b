// Sums over the voxels of a warp, of which four lanes side by side have two maps each.

// Adds up four numbers over the lanes that have the same maps. Lane 4 n + i returns the total of
// number n % 4, of the maps of lane i. Lanes exchange half of their numbers first, then half of the
// sums, so that few are exchanged.
__device__ __forceinline__ float total_of_lanes(const float (&numbers)[4]) {
  constexpr unsigned ALL = 0xffffffffu;
  const bool odd = threadIdx.x & 4, high = threadIdx.x & 8;
  const float low_total =
      (odd ? numbers[1] : numbers[0]) + __shfl_xor_sync(ALL, odd ? numbers[0] : numbers[1], 4);
  const float high_total =
      (odd ? numbers[3] : numbers[2]) + __shfl_xor_sync(ALL, odd ? numbers[2] : numbers[3], 4);
  const float total =
      (high ? high_total : low_total) + __shfl_xor_sync(ALL, high ? low_total : high_total, 8);
  return total + __shfl_xor_sync(ALL, total, 16);
}
