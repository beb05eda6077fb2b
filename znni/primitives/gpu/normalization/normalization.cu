// The factor and the shift that a norm gives each map, from the sums of its group.
//
// Everything else comes from common/map_sums.cu, compiled with the maps of a group.

// A block has one group of one image. `parts` are those of all maps, `each` of them for a map.
// scaling: (image, factor or shift, map).
extern "C" __global__ void __launch_bounds__(THREADS)
    set_scaling(const float* __restrict__ in, Index in_n, Index in_f,
                const Partial* __restrict__ parts, int each, long long voxels,
                const float* __restrict__ weights, const float* __restrict__ biases, float eps,
                float* __restrict__ scaling, int maps) {
    __shared__ double of_group[2];
    const int groups = maps / MAPS_TOGETHER;
    const int image = blockIdx.x / groups, first = blockIdx.x % groups * MAPS_TOGETHER;
    const long long before = ((long long)image * maps + first) * each;
    const Partial sums = of_parts(parts + before, MAPS_TOGETHER * each);
    if (threadIdx.x == 0) {
        const double count = (double)MAPS_TOGETHER * voxels;
        const double mean = sums.total / count;
        const double variance = sums.squares / count - mean * mean;
        of_group[0] = mean + reference_of(in, in_n, in_f, image, first);
        // A comparison with NaN is false, so NaN stays.
        of_group[1] = 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + (double)eps);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < MAPS_TOGETHER; i += THREADS) {
        const int map = first + i;
        const double factor = weights[map] * of_group[1];
        float* of_image = scaling + 2ll * image * maps;
        of_image[map] = (float)factor;
        of_image[maps + map] = (float)(biases[map] - of_group[0] * factor);
    }
}
