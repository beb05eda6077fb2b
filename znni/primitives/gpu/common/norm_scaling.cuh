// The factor and the shift that a norm gives each map, from the sums of its group.
//
// `Partial` comes from map_sums.cu.

// A block has one group of MAPS maps of one image. By the image and the first map of a group,
// `sums_of` returns its sums to the first thread, and `reference` what was taken off all values.
// scaling: (image, factor or shift, map).
template <int MAPS, class Sums, class Reference>
__device__ __forceinline__ void scale_group(const Sums& sums_of, long long voxels,
                                            const float* weights, const float* biases, float eps,
                                            float* scaling, int maps,
                                            const Reference& reference) {
    __shared__ double of_group[2];
    const int groups = maps / MAPS;
    const int image = blockIdx.x / groups, first = blockIdx.x % groups * MAPS;
    const Partial sums = sums_of(image, first);
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
