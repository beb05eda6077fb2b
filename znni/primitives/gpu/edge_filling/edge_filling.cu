// Samples beyond the volume, filled from those within. The output may be the memory of the input.
//
// Macros: MODE, one of REFLECT, EDGE and WRAP. The loop comes from common/voxels.cuh.

// Returns the sample of an axis that stands for one that may lie outside of [start, stop).
__device__ __forceinline__ int stands_for(int at, int start, int stop) {
    if (at >= start && at < stop) return at;
    if (MODE == EDGE) return min(max(at, start), stop - 1);
    const int size = stop - start;
    if (MODE == REFLECT && size == 1) return start;
    const int period = MODE == WRAP ? size : 2 * size - 2;
    const int away = ((at - start) % period + period) % period;
    return start + (MODE == WRAP ? away : min(away, period - away));
}

extern "C" __global__ void __launch_bounds__(256)
    fill_edges(const float* in, Index in_n, Index in_f, Index in_z, Index in_y, float* out,
               Index out_n, Index out_f, Index out_z, Index out_y, int start_z, int start_y,
               int start_x, int stop_z, int stop_y, int stop_x, int images, int maps, int size_z,
               int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel from = {at.image, at.map, stands_for(at.z, start_z, stop_z),
                            stands_for(at.y, start_y, stop_y), stands_for(at.x, start_x, stop_x)};
        const bool is_inside = from.z == at.z && from.y == at.y && from.x == at.x;
        if (is_inside && in == out) return;  // samples within are read by others, and stay
        out[at.in(of_out)] = in[from.in(of_in)];
    });
}
