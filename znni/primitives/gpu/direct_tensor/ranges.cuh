// Powers of two that bring an image into the range of float16, by its largest number.

// The bits of float32's 2^exponent; 128 gives infinity, from which on bits are no numbers.
__device__ __forceinline__ constexpr unsigned bits_of(int exponent) {
  return (unsigned)(127 + exponent) << 23;
}

// 1 if float16 has bits enough for an image as it is.
__device__ __forceinline__ float scale_for(unsigned largest) {
  if (largest == 0 || (largest >= bits_of(LEAST_EXPONENT) && largest < bits_of(MOST_EXPONENT)))
    return 1.0f;
  const int exponent = (int)(largest >> 23) - 127;
  return __uint_as_float(bits_of(max(-100, min(100, MOST_EXPONENT - 1 - exponent))));
}

// The power of two that brings numbers up to a bound below 2^MOST_EXPONENT. Where values are joined,
// sums are multiplied by the ratio of two such powers, so these are not extreme.
__device__ __forceinline__ float scale_below(float bound) {
  if (bound == 0.0f) return 1.0f;
  const int exponent = (int)(__float_as_uint(bound) >> 23) - 127;
  return __uint_as_float(bits_of(max(-60, min(60, MOST_EXPONENT - 1 - exponent))));
}

// Notes the bits of a block's largest number, if they are more than what is noted. All threads of the
// block call it once. At one address a GPU takes a maximum in 1 ns, so warps do not note their own.
__device__ __forceinline__ void note_largest(unsigned* noted, unsigned largest) {
  __shared__ unsigned of_warps[32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (lane == 0) of_warps[warp] = largest;
  __syncthreads();
  if (warp > 0) return;
  largest = __reduce_max_sync(0xffffffffu, lane < blockDim.x / 32 ? of_warps[lane] : 0);
  if (lane == 0) atomicMax(noted, largest);
}
