// Layer norm over maps: a thread has the maps of one voxel in one group.
//
// Macros: MAPS: the maps of a group; HELD: those of them that a thread keeps in registers. It reads
// the others three times, from a cache. `activated` comes from common/activation.py, the rest from
// common/voxels.cuh. The output may be the memory of the input.

// Calls a function with each map's number and value. held: the first maps; from: the first of all.
template <typename Function>
__device__ __forceinline__ void for_each_map(const float (&held)[HELD], const float* from,
                                             Index in_f, const Function& function) {
#pragma unroll
    for (int map = 0; map < HELD; ++map) function(map, held[map]);
#pragma unroll 4
    for (int map = HELD; map < MAPS; ++map) function(map, from[map * in_f]);
}

// in, out: (image, map, z, y, x) by strides. weights, biases and slopes have a number for each map.
// blockIdx.y counts the groups of all images.
extern "C" __global__ void __launch_bounds__(256)
    normalize_voxels(const float* in, Index in_n, Index in_f, Index in_z, Index in_y,
                     const float* __restrict__ weights, const float* __restrict__ biases,
                     const float* __restrict__ slopes, float eps, float* out, Index out_n,
                     Index out_f, Index out_z, Index out_y, int groups, int size_z, int size_y,
                     int size_x) {
    const unsigned voxel = blockIdx.x * blockDim.x + threadIdx.x;
    if (voxel >= unsigned(size_z) * size_y * size_x) return;
    const int x = voxel % size_x, y = voxel / size_x % size_y, z = voxel / size_x / size_y;
    const int image = blockIdx.y / groups, first = blockIdx.y % groups * MAPS;
    const float* from = in + image * in_n + first * in_f + z * in_z + y * in_y + x;
    float* to = out + image * out_n + first * out_f + z * out_z + y * out_y + x;
    float held[HELD];
#pragma unroll
    for (int map = 0; map < HELD; ++map) held[map] = from[map * in_f];
    float total = 0.0f, squares = 0.0f;
    for_each_map(held, from, in_f, [&](int, float value) { total += value - held[0]; });
    const float mean = held[0] + total / MAPS;  // so a mean of equal values has no error
    for_each_map(held, from, in_f, [&](int, float value) {
        squares = fmaf(value - mean, value - mean, squares);
    });
    const float factor = 1.0f / sqrtf(squares / MAPS + eps);
    for_each_map(held, from, in_f, [&](int map, float value) {
        const float scaled = fmaf((value - mean) * factor, weights[first + map], biases[first + map]);
        to[map * out_f] = activated(scaled, slopes[first + map]);
    });
}
