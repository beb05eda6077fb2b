// The factor and the shift that a norm gives each map, from the sums of its group.
//
// `Partial` and `of_parts` come from map_sums.cu.

// A block has one group of MAPS maps of one image. `parts` are those of all maps, `each` of them
// for a map. `reference` returns what was taken off all values of a group, by its image and first
// map. scaling: (image, factor or shift, map).
template <int MAPS, class Reference>
__device__ __forceinline__ void scale_group(const Partial* parts, int each, long long voxels,
                                            const float* weights, const float* biases, float eps,
                                            float* scaling, int maps,
                                            const Reference& reference) {
    __shared__ double of_group[2];
    const int groups = maps / MAPS;
    const int image = blockIdx.x / groups, first = blockIdx.x % groups * MAPS;
    const long long before = ((long long)image * maps + first) * each;
    const Partial sums = of_parts(parts + before, MAPS * each);
    if (threadIdx.x == 0) {
        const double count = (double)MAPS * voxels;
        const double mean = sums.total / count;
        const double variance = sums.squares / count - mean * mean;
        of_group[0] = mean + reference(image, first);
        // A comparison with NaN is false, so NaN stays.
        of_group[1] = 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + (double)eps);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < MAPS; i += THREADS) {
        const int map = first + i;
        const double factor = weights[map] * of_group[1];
        float* of_image = scaling + 2ll * image * maps;
        of_image[map] = (float)factor;
        of_image[maps + map] = (float)(biases[map] - of_group[0] * factor);
    }
}
