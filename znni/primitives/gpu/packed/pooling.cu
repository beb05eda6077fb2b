// Maxima or averages of windows of packed values. The scale stays: no result is larger than the
// largest number.
//
// Macros: WINDOW_Z, _Y, _X; STRIDE_Z, _Y, _X; IS_MAX.

// Returns the larger of two numbers, or NaN if one of them is NaN, for both of a pair.
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b) {
    unsigned result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ __forceinline__ uint4 larger_voxel(uint4 a, uint4 b) {
    return make_uint4(larger_pair(a.x, b.x), larger_pair(a.y, b.y), larger_pair(a.z, b.z),
                      larger_pair(a.w, b.w));
}

// A maximum ignores samples outside of [start, stop); an average counts all of its window.
extern "C" __global__ void __launch_bounds__(256)
    pool(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
         const Record* records, uint4* __restrict__ out, Index out_n, Index out_f, Index out_z,
         Index out_y, Record* made, int start_z, int start_y, int start_x, int stop_z, int stop_y,
         int stop_x, int images, int groups, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    pass_on(records, made, groups);
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel first = {at.image, at.map, at.z * STRIDE_Z, at.y * STRIDE_Y, at.x * STRIDE_X};
        const uint4* corner = in + first.in(of_in);
        constexpr unsigned least = 0xfc00fc00u;  // minus infinity
        uint4 most = make_uint4(least, least, least, least);
        Eight sums = {};
#pragma unroll 1
        for (int z = 0; z < WINDOW_Z; ++z) {
#pragma unroll
            for (int y = 0; y < WINDOW_Y; ++y) {
                const uint4* row = corner + z * in_z + y * in_y;
                const bool in_row = first.z + z >= start_z && first.z + z < stop_z &&
                                    first.y + y >= start_y && first.y + y < stop_y;
#pragma unroll
                for (int x = 0; x < WINDOW_X; ++x) {
                    if (IS_MAX) {
                        if (in_row && first.x + x >= start_x && first.x + x < stop_x)
                            most = larger_voxel(most, row[x]);
                    } else {
                        const Eight numbers = numbers_of(row[x], 1.0f);
#pragma unroll
                        for (int map = 0; map < 8; ++map) sums.of[map] += numbers.of[map];
                    }
                }
            }
        }
        if (!IS_MAX) most = voxel_of(sums, 1.0f / (WINDOW_Z * WINDOW_Y * WINDOW_X));
        out[at.in(of_out)] = most;
    });
}
