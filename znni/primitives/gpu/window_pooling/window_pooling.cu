// Maxima or averages of windows at any stride, in an output with any strides.
//
// Macros: WINDOW_Z, _Y, _X; STRIDE_Z, _Y, _X; DILATION_Z, _Y, _X; IS_MAX. `larger` comes from common/larger.cuh, the
// rest from common/voxels.cuh.

// A maximum ignores samples outside of [start, stop); an average counts all of its window.
extern "C" __global__ void __launch_bounds__(256)
    window_pooling(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
                   float* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y,
                   int start_z, int start_y, int start_x, int stop_z, int stop_y, int stop_x,
                   int images, int maps, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel first = {at.image, at.map, at.z * STRIDE_Z, at.y * STRIDE_Y, at.x * STRIDE_X};
        const float* corner = in + first.in(of_in);
        float value = IS_MAX ? __uint_as_float(0xff800000u) : 0.0f;
#pragma unroll 1
        for (int z = 0; z < WINDOW_Z * DILATION_Z; z += DILATION_Z) {
#pragma unroll 1
            for (int y = 0; y < WINDOW_Y * DILATION_Y; y += DILATION_Y) {
                const float* row = corner + z * in_z + y * in_y;
                const bool in_row = first.z + z >= start_z && first.z + z < stop_z &&
                                    first.y + y >= start_y && first.y + y < stop_y;
#pragma unroll
                for (int x = 0; x < WINDOW_X * DILATION_X; x += DILATION_X) {
                    if (!IS_MAX)
                        value += row[x];
                    else if (in_row && first.x + x >= start_x && first.x + x < stop_x)
                        value = larger(value, row[x]);
                }
            }
        }
        if (!IS_MAX) value *= 1.0f / (WINDOW_Z * WINDOW_Y * WINDOW_X);
        out[at.in(of_out)] = value;
    });
}
