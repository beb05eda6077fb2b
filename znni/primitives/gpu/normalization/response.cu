// The factor and the shift of each map by its L2 norm, as a share of the mean norm of its group. The
// input is added to the result, so it is 1 more in the factor.
//
// Macros: MAPS_OF_GROUP: the maps of a group. `Partial` comes from common/map_sums.cu.

// A block has one group of one image. scaling: (image, factor or shift, map).
extern "C" __global__ void __launch_bounds__(THREADS)
    set_scaling(const float*, Index, Index, const Partial* __restrict__ parts, int each, long long,
                const float* __restrict__ weights, const float* __restrict__ biases, float eps,
                float* scaling, int maps) {
    __shared__ double mean;
    const int groups = maps / MAPS_OF_GROUP, lane = threadIdx.x % 32;
    const int image = blockIdx.x / groups, first = blockIdx.x % groups * MAPS_OF_GROUP;
    float* factors = scaling + 2ll * image * maps + first;
    for (int map = threadIdx.x / 32; map < MAPS_OF_GROUP; map += WARPS) {
        const Partial* of_map = parts + ((long long)image * maps + first + map) * each;
        double squares = 0.0;
        for (int i = lane; i < each; i += 32) squares += of_map[i].squares;
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2)
            squares += __shfl_down_sync(0xffffffffu, squares, apart);
        if (lane == 0) factors[map] = (float)sqrt(squares);
    }
    __syncthreads();
    Partial norms = nothing();
    for (int map = threadIdx.x; map < MAPS_OF_GROUP; map += THREADS)
        norms.take({factors[map], 0.0});
    norms = of_block(norms);
    if (threadIdx.x == 0) mean = norms.total / MAPS_OF_GROUP + (double)eps;
    __syncthreads();
    for (int map = threadIdx.x; map < MAPS_OF_GROUP; map += THREADS) {
        factors[map] = (float)(weights[first + map] * (factors[map] / mean) + 1.0);
        factors[maps + map] = biases[first + map];
    }
}
