// A window as the network sees it, or a mirrored copy of it.
//
// Both arrays are (map, z, y, x) by strides, and the last axis of the copy is contiguous. The rest
// comes from primitives/gpu/common/voxels.cuh.

// Copies a window. Its axes may run backwards.
extern "C" __global__ void __launch_bounds__(256)
    place_window(float* __restrict__ copy, Index copy_f, Index copy_z, Index copy_y,
                 const float* __restrict__ window, Index window_f, Index window_z, Index window_y,
                 Index window_x, int images, int maps, int size_z, int size_y, int size_x) {
    const Strides of_copy = {0, copy_f, copy_z, copy_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        copy[at.in(of_copy)] =
            window[at.map * window_f + at.z * window_z + at.y * window_y + at.x * window_x];
    });
}
