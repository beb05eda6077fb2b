// Planes of packed values that a sweep carries: blocks before may have had another scale.
//
// Constants: THREADS of a block, and VALUES: the words that a thread copies. Two float16 are a word, from
// float16_pair.cuh.

// The bits of the largest number of a group of maps, and the scale of its numbers; 0: it has none yet.
struct Record {
  unsigned largest;
  float scale;
};

// The scale that suits both: the smaller one, with which no number is too large.
__device__ __forceinline__ float common_scale(const Record& one, const Record& other) {
  if (one.scale == 0.0f || other.scale == 0.0f) return fmaxf(one.scale, other.scale);
  return fminf(one.scale, other.scale);
}

// Copies rows of `width` words to their place, with the common scale of two values. `own` has the records
// of the value that is copied. Its numbers stay in their place if `source` is `into`.
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_scaled(const unsigned* source, long long source_stride, unsigned* into, long long into_stride,
                long long rows, long long width, int shift, int parts, const Record* own,
                const Record* other, unsigned rows_of_record) {
  const long long first_row = (long long)(blockIdx.x / parts) * (THREADS * VALUES >> shift);
  const long long first = (long long)(blockIdx.x % parts) << shift;
  // Rows may exceed 32 bits. Those within a group do not, so the loop divides 32 bits.
  const long long first_group = first_row / rows_of_record;
  const unsigned first_within = (unsigned)(first_row - first_group * rows_of_record);
#pragma unroll
  for (int i = 0; i < VALUES; ++i) {
    const int at = i * THREADS + threadIdx.x;
    const long long row = first_row + (at >> shift), x = first + (at & ((1 << shift) - 1));
    if (row >= rows || x >= width) continue;
    const long long group = first_group + (first_within + (at >> shift)) / rows_of_record;
    const Record& record = own[group];
    const float scale = common_scale(record, other[group]);
    const float factor = record.scale == 0.0f ? 1.0f : scale / record.scale;
    if (factor == 1.0f && source == into) continue;
    const float2 numbers = number_of(source[row * source_stride + x]);
    into[row * into_stride + x] = rounded_pair(numbers.x * factor, numbers.y * factor);
  }
}

// Gives two values the records of both together.
extern "C" __global__ void __launch_bounds__(THREADS) agree(Record* made, Record* carried, int groups) {
  const int group = blockIdx.x * THREADS + threadIdx.x;
  if (group >= groups) return;
  const Record one = made[group], other = carried[group];
  const Record both = {one.largest > other.largest ? one.largest : other.largest, common_scale(one, other)};
  made[group] = both;
  carried[group] = both;
}
