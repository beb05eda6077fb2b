// Planes that a sweep carries, to an array and from it.
//
// Constants: THREADS of a block, and VALUES: the values that a thread copies.

// source, into: rows of `width` values, by strides. Blocks: part of `2^shift` values of a row, rows.
// All reads of a thread are on their way before it writes. Otherwise too few bytes would be, and memory
// would wait.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_planes(const float* __restrict__ source, long long source_stride, float* __restrict__ into,
                long long into_stride, long long rows, long long width, int shift, int parts) {
  const long long first_row = (long long)(blockIdx.x / parts) * (THREADS * VALUES >> shift);
  const long long first = (long long)(blockIdx.x % parts) << shift;
  float values[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const long long row = first_row + (at >> shift), x = first + (at & ((1 << shift) - 1));
    if (row < rows && x < width) values[i] = source[row * source_stride + x];
  }
#pragma unroll
  for (int i = 0; i < VALUES; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const long long row = first_row + (at >> shift), x = first + (at & ((1 << shift) - 1));
    if (row < rows && x < width) into[row * into_stride + x] = values[i];
  }
}
