// Nearest upsampling of packed values by whole factors. Factors of one copy.
//
// Macros: FACTOR_Z, _Y, _X.

extern "C" __global__ void __launch_bounds__(256)
    upsample(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
             const Record* records, uint4* __restrict__ out, Index out_n, Index out_f, Index out_z,
             Index out_y, Record* made, int images, int groups, int size_z, int size_y,
             int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    pass_on(records, made, groups);
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel from = {at.image, at.map, at.z / FACTOR_Z, at.y / FACTOR_Y, at.x / FACTOR_X};
        out[at.in(of_out)] = in[from.in(of_in)];
    });
}
