// Samples rearranged for a dense convolution, and its sums put in their places.
//
// Macros: STEP_Z, _Y, _X: see each kernel. `activated` comes from common/activation.py, the rest
// from common/voxels.cuh.

// Gathers every STEP-th sample into maps and items of their own.
//
// in: (image, map, z, y, x) by strides, zero beyond its extents. out: contiguous (group of maps,
// image, item, shift, map of the group, z, y, x). Along each axis sample j of an item and shift is
// sample STEP * j + item + shift of the input.
extern "C" __global__ void __launch_bounds__(256)
    gather(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
           int extent_z, int extent_y, int extent_x, float* __restrict__ out, int group_maps,
           int images, int items_z, int items_y, int items_x, int shifts_y, int shifts_x,
           int all_items, int maps, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y};
    const Index plane = Index(size_y) * size_x, map_size = plane * size_z;
    const Strides of_out = {maps * map_size, map_size, plane, size_x};
    const int items = items_z * items_y * items_x;
    for_each_voxel(all_items, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const int item = at.image % items, image = at.image / items % images;
        const int group = at.image / items / images, shift = at.map / group_maps;
        const Voxel from = {
            image, group * group_maps + at.map % group_maps,
            STEP_Z * at.z + item / items_x / items_y + shift / shifts_x / shifts_y,
            STEP_Y * at.y + item / items_x % items_y + shift / shifts_x % shifts_y,
            STEP_X * at.x + item % items_x + shift % shifts_x};
        const bool present = from.z < extent_z && from.y < extent_y && from.x < extent_x;
        out[at.in(of_out)] = present ? in[from.in(of_in)] : 0.0f;
    });
}

// Puts sums in their places, through an activation.
//
// sums: (group of maps, image, phase, map of the group, z, y, x) with these strides of the first
// four; out: (image, map, z, y, x) by strides. Along each axis sample STEP * j + phase of the output
// is sample j of a phase.
extern "C" __global__ void __launch_bounds__(256)
    scatter(const float* __restrict__ sums, Index of_group, Index of_image, Index of_phase,
            int sums_z, int sums_y, int sums_x, int group_maps, const float* __restrict__ slopes,
            float* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y, int images,
            int maps, int size_z, int size_y, int size_x) {
    const Strides of_out = {out_n, out_f, out_z, out_y};
    const Index plane = Index(sums_y) * sums_x, map_size = plane * sums_z;
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const int phase =
            (at.z % STEP_Z * STEP_Y + at.y % STEP_Y) * STEP_X + at.x % STEP_X;
        const Index from = at.map / group_maps * of_group + at.image * of_image +
                           phase * of_phase + at.map % group_maps * map_size +
                           at.z / STEP_Z * plane + Index(at.y / STEP_Y) * sums_x + at.x / STEP_X;
        out[at.in(of_out)] = activated(sums[from], slopes[at.map]);
    });
}
