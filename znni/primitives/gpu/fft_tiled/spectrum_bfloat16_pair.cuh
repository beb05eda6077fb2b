// Numbers of spectra as pairs of bfloat16 (common/bfloat16_pair.cuh). The kernels' spectra are in
// the order (half, 4 input maps, output map, one of the 4).

__device__ __forceinline__ int in_map_of(int chunk, int lane) { return 4 * chunk + lane; }

// Halves keep all that matters of a mean.
__device__ __forceinline__ float rest_of(float) { return 0.0f; }

__device__ __forceinline__ void put_kernel_number(unsigned* spectra, long long frequency, int chunk,
                                                  int chunks, int out_map, int out_maps, int lane,
                                                  float real, float imaginary) {
  const Halves halves = halves_of(real, imaginary);
  const long long place = ((frequency * 2 * chunks + chunk) * out_maps + out_map) * 4 + lane;
  spectra[place] = halves.high;
  spectra[place + (long long)chunks * out_maps * 4] = halves.low;
}
