// Upsampling by whole factors, in an output with any strides.
//
// Macros: FACTOR_Z, _Y, _X; INTERPOLATES. The loop comes from common/voxels.cuh, `neighbours` from
// neighbours.cuh.

extern "C" __global__ void __launch_bounds__(256)
    upsample(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
             float* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y,
             int start_z, int start_y, int start_x, int stop_z, int stop_y, int stop_x, int images,
             int maps, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        float value;
        if (INTERPOLATES) {
            const float* map = in + at.image * in_n + at.map * in_f;
            const Neighbours z = neighbours(at.z, FACTOR_Z, start_z, stop_z);
            const Neighbours y = neighbours(at.y, FACTOR_Y, start_y, stop_y);
            const Neighbours x = neighbours(at.x, FACTOR_X, start_x, stop_x);
            const auto along_x = [&](int at_z, int at_y) {
                const float* row = map + at_z * in_z + at_y * in_y;
                return (1.0f - x.share) * row[x.left] + x.share * row[x.right];
            };
            const auto along_y = [&](int at_z) {
                return (1.0f - y.share) * along_x(at_z, y.left) + y.share * along_x(at_z, y.right);
            };
            value = (1.0f - z.share) * along_y(z.left) + z.share * along_y(z.right);
        } else {
            const Voxel from = {at.image, at.map, at.z / FACTOR_Z, at.y / FACTOR_Y,
                                at.x / FACTOR_X};
            value = in[from.in(of_in)];
        }
        out[at.in(of_out)] = value;
    });
}
