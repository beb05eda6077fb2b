// The average or the maximum of each map, from what blocks of common/map_sums.cu found.

// A block has one map of one image; `each` parts belong to a map. out: (image, map) by strides.
extern "C" __global__ void __launch_bounds__(THREADS)
    pool_maps(const Partial* __restrict__ parts, int each, long long voxels,
              float* __restrict__ out, Index out_n, Index out_f, int maps) {
    const Partial found = of_parts(parts + (long long)blockIdx.x * each, each);
    if (threadIdx.x == 0)
        out[blockIdx.x / maps * out_n + blockIdx.x % maps * out_f] =
            (float)(IS_MAX ? found.total : found.total / (double)voxels);
}
