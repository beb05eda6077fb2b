// Planes that a sweep carries, to an array and from it.
//
// Constants: THREADS of a block, and VALUES: the values that a thread copies.

// source, into: rows of `width` values, by strides. Blocks: part of a row, row. All reads of a thread
// are on their way before it writes. Otherwise too few bytes would be, and memory would wait.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_planes(const float* __restrict__ source, long long source_stride, float* __restrict__ into,
                long long into_stride, long long width, int parts) {
  const long long row = blockIdx.x / parts;
  const long long first = (long long)(blockIdx.x % parts) * (THREADS * VALUES) + threadIdx.x;
  source += row * source_stride;
  into += row * into_stride;
  float values[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    if (first + i * THREADS < width) values[i] = source[first + i * THREADS];
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    if (first + i * THREADS < width) into[first + i * THREADS] = values[i];
}
