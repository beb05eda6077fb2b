// Numbers of spectra as two float16, the real part in the lower bits, in ranges of their own.
//
// If all voxels of a tile and a group of maps are less than 2^exponent, its numbers are multiplied
// by 2^(LEFT_SHIFT - exponent). So no number passes 2^LEFT_BITS, and those that matter are far from
// the smallest float16. Kernels are multiplied before they are transformed.
//
// The mean of an image is often its largest number by far, and an error of it is one of all voxels.
// It is real. So what rounding takes off it is kept in the place of its imaginary part. The parts of
// a product of two such numbers add up to the product of the whole numbers, but for the product of
// both rests. That is far below a float16's precision.

// Returns what rounding takes off a number.
__device__ __forceinline__ float rest_of(float number) {
  return number - number_of(rounded_pair(number, 0.0f)).x;
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((127 + exponent) << 23);
}

// Limits exponents, so that these powers are normal numbers for any voxels.
__device__ __forceinline__ int exponent_above(unsigned largest_bits) {
  return max(LEAST_EXPONENT, min(int(largest_bits >> 23) - 126, MOST_EXPONENT));
}

// The kernels' spectra are in the order (4 input maps that are 4 apart, output map, one of the 4).
// Output maps are in the order of a product's columns.
__device__ __forceinline__ int in_map_of(int chunk, int lane) {
  return chunk / 4 * 16 + 4 * lane + chunk % 4;
}

__device__ __forceinline__ int position_of(int out_map) {
  return out_map / 16 * 16 + out_map % 4 * 4 + out_map / 4 % 4;
}

__device__ __forceinline__ void put_kernel_number(unsigned* spectra, long long frequency, int chunk,
                                                  int chunks, int out_map, int out_maps, int lane,
                                                  float real, float imaginary) {
  spectra[((frequency * chunks + chunk) * out_maps + position_of(out_map)) * 4 + lane] =
      rounded_pair(real, imaginary);
}
