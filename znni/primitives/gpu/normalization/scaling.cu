// A factor, a shift and an activation for each map, four voxels at a time. The output may be the
// memory of the input.
//
// `activated` comes from common/activation.py, the rest from common/voxels.cuh.

// in, out: (image, map, z, y, x) by strides; rows begin at 16 bytes, and size_x counts four voxels
// each. scaling: (image, factor or shift, map). slopes have a number for each map.
extern "C" __global__ void __launch_bounds__(256)
    scale_maps(const float* in, Index in_n, Index in_f, Index in_z, Index in_y,
               const float* __restrict__ scaling, const float* __restrict__ slopes, float* out,
               Index out_n, Index out_f, Index out_z, Index out_y, int images, int maps,
               int size_z, int size_y, int size_x) {
    const auto load = [&](const Voxel& at) {
        const Index from = at.image * in_n + at.map * in_f + at.z * in_z + at.y * in_y;
        return *reinterpret_cast<const float4*>(in + from + 4 * at.x);
    };
    const auto store = [&](const Voxel& at, float4 four) {
        const float* of_image = scaling + 2ll * at.image * maps;
        const float factor = of_image[at.map], shift = of_image[maps + at.map];
        const float slope = slopes[at.map];
        const Index to = at.image * out_n + at.map * out_f + at.z * out_z + at.y * out_y;
        four.x = activated(fmaf(four.x, factor, shift), slope);
        four.y = activated(fmaf(four.y, factor, shift), slope);
        four.z = activated(fmaf(four.z, factor, shift), slope);
        four.w = activated(fmaf(four.w, factor, shift), slope);
        *reinterpret_cast<float4*>(out + to + 4 * at.x) = four;
    };
    for_each_voxel(images, maps, size_z, size_y, size_x, load, store);
}
