// The factor and the shift that a norm gives each map, as common/norm_scaling.cuh says.

extern "C" __global__ void __launch_bounds__(THREADS)
    set_scaling(const float* __restrict__ in, Index in_n, Index in_f,
                const Partial* __restrict__ parts, int each, long long voxels,
                const float* __restrict__ weights, const float* __restrict__ biases, float eps,
                float* __restrict__ scaling, int maps) {
    const auto sums = [&](int image, int first) {
        return of_parts(parts + ((long long)image * maps + first) * each, MAPS_TOGETHER * each);
    };
    scale_group<MAPS_TOGETHER>(sums, voxels, weights, biases, eps, scaling, maps,
                               [&](int image, int first) {
                                   return reference_of(in, in_n, in_f, image, first);
                               });
}
