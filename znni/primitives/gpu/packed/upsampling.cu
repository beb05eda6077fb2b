// Upsampling of packed values by whole factors. Factors of one copy.
//
// Macros: FACTOR_Z, _Y, _X. `neighbours` comes from upsampling/neighbours.cuh.

extern "C" __global__ void __launch_bounds__(256)
    upsample(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
             const Record* records, uint4* __restrict__ out, Index out_n, Index out_f, Index out_z,
             Index out_y, Record* made, int images, int groups, int size_z, int size_y,
             int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    pass_on(records, made, groups);
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel from = {at.image, at.map, at.z / FACTOR_Z, at.y / FACTOR_Y, at.x / FACTOR_X};
        store(out + at.in(of_out), out_f, stored_at(in + from.in(of_in), in_f));
    });
}

// Returns a voxel between two others, of which the second has a share.
__device__ __forceinline__ Eight between(const Eight& left, const Eight& right, float share) {
    Eight found;
#pragma unroll
    for (int map = 0; map < 8; ++map)
        found.of[map] = (1.0f - share) * left.of[map] + share * right.of[map];
    return found;
}

// Trilinear upsampling. The scale stays, because no number is larger than the largest of the input.
// Samples outside of [start, stop) have the nearest one inside. Three blocks are enough for a
// multiprocessor, or two for pairs: for more, a compiler spilled registers.
extern "C" __global__ void __launch_bounds__(256, PARTS == 2 ? 2 : 3)
    interpolate(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
                const Record* records, uint4* __restrict__ out, Index out_n, Index out_f,
                Index out_z, Index out_y, Record* made, int start_z, int start_y, int start_x,
                int stop_z, int stop_y, int stop_x, int images, int groups, int size_z, int size_y,
                int size_x) {
    const Strides of_out = {out_n, out_f, out_z, out_y};
    pass_on(records, made, groups);
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const uint4* group = in + at.image * in_n + at.map * in_f;
        const Neighbours z = neighbours(at.z, FACTOR_Z, start_z, stop_z);
        const Neighbours y = neighbours(at.y, FACTOR_Y, start_y, stop_y);
        const Neighbours x = neighbours(at.x, FACTOR_X, start_x, stop_x);
        const auto along_x = [&](int at_z, int at_y) {
            const uint4* row = group + at_z * in_z + at_y * in_y;
            const Eight left = numbers_of(stored_at(row + x.left, in_f), 1.0f);
            if (FACTOR_X == 1) return left;
            return between(left, numbers_of(stored_at(row + x.right, in_f), 1.0f), x.share);
        };
        const auto along_y = [&](int at_z) {
            const Eight left = along_x(at_z, y.left);
            return FACTOR_Y == 1 ? left : between(left, along_x(at_z, y.right), y.share);
        };
        Eight sums = {};
#pragma unroll 1
        for (int side = 0; side < (FACTOR_Z == 1 ? 1 : 2); ++side) {
            const float share = FACTOR_Z == 1 ? 1.0f : side ? z.share : 1.0f - z.share;
            const Eight plane = along_y(side ? z.right : z.left);
#pragma unroll
            for (int map = 0; map < 8; ++map)
                sums.of[map] = fmaf(share, plane.of[map], sums.of[map]);
        }
        store(out + at.in(of_out), out_f, stored_of(sums, 1.0f));
    });
}
