// The image in the order in which products of tensor cores read it: float16, 8 maps of a voxel
// together.
//
// Macros: PARTS of a number; GATHERS: whether the image is gathered from every STEP-th sample of the
// input, from each of SHIFTS first samples, all along z, y and x. Maps of one shift then follow those
// of another, as in arranged/arrange.cu.

#include <cuda_fp16.h>

constexpr int MAPS = 8;
constexpr int THREADS = 256;

__device__ __forceinline__ unsigned pair_of(__half low, __half high) {
  return __half_as_ushort(low) | (unsigned)__half_as_ushort(high) << 16;
}

// Writes (item, 16 maps, part, 8 maps, z, y, x, map). The first call writes the numbers as they are
// and notes the largest. The second, `again`, writes them scaled if the largest is out of range.
// Gathered samples beyond the input's extents are zero. The input has `source_maps`, a multiple of 8
// if they are gathered.
extern "C" __global__ void __launch_bounds__(THREADS, GATHERS ? 4 : 6)
    lay_out(const float* x, long long stride_n, long long stride_f, long long stride_z,
            long long stride_y, int items, int maps, int size_z, int size_y, int size_x,
            int source_maps, int extent_z, int extent_y, int extent_x, unsigned* largest, int again,
            uint4* image) {
  const float scale = again ? scale_for(*largest) : 1.0f;
  if (again && scale == 1.0f) return;
  const unsigned voxels = (unsigned)size_z * size_y * size_x;  // below 2^31: one more step fits
  const int groups = (maps + 2 * MAPS - 1) / (2 * MAPS) * 2;
  unsigned most = 0;
  for (int i = blockIdx.y; i < items * groups; i += gridDim.y) {
    const int item = i / groups, group = i % groups;
    const int shift = GATHERS ? group * MAPS / source_maps : 0;
    const int shift_z = shift / SHIFTS_X / SHIFTS_Y, shift_y = shift / SHIFTS_X % SHIFTS_Y;
    const int shift_x = shift % SHIFTS_X;
    const int first_map = group * MAPS - shift * source_maps;
    const float* of_group = x + item * stride_n + first_map * stride_f + shift_z * stride_z +
                            shift_y * stride_y + shift_x;
    uint4* target =
        image + (((long long)item * groups / 2 + group / 2) * 2 * PARTS + group % 2) * voxels;
#pragma unroll 1
    for (unsigned voxel = blockIdx.x * THREADS + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * THREADS) {
      const unsigned row = voxel / size_x;
      const int at_z = row / size_y * STEP_Z, at_y = row % size_y * STEP_Y;
      const int at_x = voxel % size_x * STEP_X;
      const float* source = of_group + at_z * stride_z + at_y * stride_y + at_x;
      const bool present = !GATHERS || (at_z + shift_z < extent_z && at_y + shift_y < extent_y &&
                                        at_x + shift_x < extent_x);
      float value[MAPS];
#pragma unroll
      for (int map = 0; map < MAPS; ++map)
        value[map] = present && group * MAPS + map < maps ? source[map * stride_f] : 0.0f;
      __half high[MAPS], low[MAPS];
#pragma unroll
      for (int map = 0; map < MAPS; ++map) {
        const unsigned bits = __float_as_uint(value[map]) & 0x7fffffffu;
        if (bits < bits_of(128)) most = max(most, bits);
        high[map] = __float2half_rn(value[map] * scale);
        low[map] = __float2half_rn(value[map] * scale - __half2float(high[map]));
      }
      target[voxel] = make_uint4(pair_of(high[0], high[1]), pair_of(high[2], high[3]),
                                 pair_of(high[4], high[5]), pair_of(high[6], high[7]));
      if (PARTS == 2)
        target[2ll * voxels + voxel] =
            make_uint4(pair_of(low[0], low[1]), pair_of(low[2], low[3]),
                       pair_of(low[4], low[5]), pair_of(low[6], low[7]));
    }
  }
  if (!again) note_largest(largest, most);
}
