// Voxels of packed values rearranged for a dense convolution, as arranged/arrange.cu does with single
// numbers.
//
// Macros: STEP_Z, _Y, _X; SHIFTS_Y, _X.

// Gathers every STEP-th voxel, from each of some first ones (shifts). Groups of a shift follow each
// other. Voxels beyond the input's extents are zero. out: (image, shift and group, z, y, x).
extern "C" __global__ void __launch_bounds__(256)
    gather(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
           const Record* records, int extent_z, int extent_y, int extent_x, int of_shift,
           uint4* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y,
           Record* made, int images, int groups, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (int group = threadIdx.x; group < groups; group += blockDim.x)
            made[group] = records[group % of_shift];
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const int shift = at.map / of_shift;
        const Voxel from = {at.image, at.map % of_shift,
                            STEP_Z * at.z + shift / SHIFTS_X / SHIFTS_Y,
                            STEP_Y * at.y + shift / SHIFTS_X % SHIFTS_Y,
                            STEP_X * at.x + shift % SHIFTS_X};
        const bool present = from.z < extent_z && from.y < extent_y && from.x < extent_x;
        out[at.in(of_out)] = present ? in[from.in(of_in)] : make_uint4(0, 0, 0, 0);
    });
}
