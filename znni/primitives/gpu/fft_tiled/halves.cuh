// Numbers as sums of two bfloat16 halves: 16 bits of precision, and the range of float32.

// Two numbers' nearest bfloat16, the first in the lower bits.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

struct Halves {
  unsigned high, low;
};

// The halves of a complex number, real parts in the lower bits.
__device__ __forceinline__ Halves halves_of(float real, float imaginary) {
  const unsigned high = rounded_pair(real, imaginary);
  const unsigned low = rounded_pair(real - __uint_as_float(high << 16),
                                    imaginary - __uint_as_float(high & 0xffff0000u));
  return {high, low};
}

// The order of a kernels' spectrum: (half, 4 input maps, output map, one of the 4).
__device__ __forceinline__ int in_map_of(int chunk, int lane) { return 4 * chunk + lane; }

__device__ __forceinline__ void put_kernel_number(unsigned* spectra, long long frequency, int chunk,
                                                  int chunks, int out_map, int out_maps, int lane,
                                                  float real, float imaginary) {
  const Halves halves = halves_of(real, imaginary);
  const long long place = ((frequency * 2 * chunks + chunk) * out_maps + out_map) * 4 + lane;
  spectra[place] = halves.high;
  spectra[place + (long long)chunks * out_maps * 4] = halves.low;
}
