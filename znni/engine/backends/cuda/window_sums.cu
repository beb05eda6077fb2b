// The outputs of windows, added up over a box of voxels, and their weighted mean.
//
// All arrays are (map, z, y, x) by strides, the last axis contiguous unless it has a stride. The rest
// comes from primitives/gpu/common/voxels.cuh.

// Adds values times weights to sums. The values' axes may run backwards. Each map has the same
// weights, which count `copies` times in `totals`: 0 leaves these as they are.
extern "C" __global__ void __launch_bounds__(256)
    add_window(float* sums, Index sums_f, Index sums_z, Index sums_y, float* totals,
               Index totals_z, Index totals_y, const float* __restrict__ values, Index values_f,
               Index values_z, Index values_y, Index values_x, const float* __restrict__ weights,
               Index weights_z, Index weights_y, float copies, int images, int maps, int size_z,
               int size_y, int size_x) {
    const Strides of_sums = {0, sums_f, sums_z, sums_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const float weight = weights[at.z * weights_z + at.y * weights_y + at.x];
        const float value =
            values[at.map * values_f + at.z * values_z + at.y * values_y + at.x * values_x];
        float& sum = sums[at.in(of_sums)];
        sum = fmaf(value, weight, sum);
        if (at.map == 0 && copies != 0.0f)
            totals[at.z * totals_z + at.y * totals_y + at.x] += weight * copies;
    });
}

// Writes sums divided by totals; a voxel that no window has becomes 0.
extern "C" __global__ void __launch_bounds__(256)
    divide(const float* __restrict__ sums, Index sums_f, Index sums_z, Index sums_y,
           const float* __restrict__ totals, Index totals_z, Index totals_y, float* mean,
           Index mean_f, Index mean_z, Index mean_y, int images, int maps, int size_z, int size_y,
           int size_x) {
    const Strides of_sums = {0, sums_f, sums_z, sums_y}, of_mean = {0, mean_f, mean_z, mean_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        const float total = totals[at.z * totals_z + at.y * totals_y + at.x];
        mean[at.in(of_mean)] = total == 0.0f ? 0.0f : sums[at.in(of_sums)] / total;
    });
}

// Replaces each value by its sigmoid.
extern "C" __global__ void __launch_bounds__(256)
    sigmoid(float* mean, Index mean_f, Index mean_z, Index mean_y, int images, int maps, int size_z,
            int size_y, int size_x) {
    const Strides of_mean = {0, mean_f, mean_z, mean_y};
    for_each_voxel(images, maps, size_z, size_y, size_x, [&](const Voxel& at) {
        float& value = mean[at.in(of_mean)];
        value = 1.0f / (1.0f + expf(-value));
    });
}
