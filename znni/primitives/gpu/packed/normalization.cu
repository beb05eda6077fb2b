// The sums of packed values, and the factor and the shift that a norm gives each map.
//
// Macros: NORMED_TOGETHER: the maps of a norm's group. `Partial` comes from common/map_sums.cu.

// Writes what each block finds of the maps of a group of 8. Blocks of a group follow each other:
// `shares` of its planes, each with `columns` blocks. parts: (image, map, share and column).
// One block is enough for a multiprocessor: for more, a compiler spilled registers.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    reduce_packed(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
                  const Record* records, Partial* __restrict__ parts, int columns, int shares,
                  int groups, int size_z, int size_y, int size_x) {
    const unsigned of_group = blockIdx.x / columns, share = of_group % shares;
    const int image = of_group / shares / groups, group = of_group / shares % groups;
    const unsigned cell = blockIdx.x % columns * THREADS + threadIdx.x;
    const int each = (size_z + shares - 1) / shares;
    const int first = share * each, last = min(size_z, first + each);
    const float factor = 1.0f / records[group].scale;
    Partial own[8];
#pragma unroll
    for (int map = 0; map < 8; ++map) own[map] = nothing();
    if (cell < unsigned(size_y) * size_x) {
        const uint4* column = in + image * in_n + group * in_f + cell / size_x * in_y +
                              cell % size_x;
        for (int start = first; start < last; start += RUN) {
            float total[8] = {}, squares[8] = {};
#pragma unroll 4
            for (int z = start; z < min(last, start + RUN); ++z) {
                const Eight numbers = numbers_of(stored_at(column + z * in_z, in_f), factor);
#pragma unroll
                for (int map = 0; map < 8; ++map) {
                    total[map] += numbers.of[map];
                    squares[map] = fmaf(numbers.of[map], numbers.of[map], squares[map]);
                }
            }
#pragma unroll
            for (int map = 0; map < 8; ++map) own[map].take({total[map], squares[map]});
        }
    }
    const int part = share * columns + blockIdx.x % columns, count = shares * columns;
#pragma unroll
    for (int map = 0; map < 8; ++map) {
        const Partial found = of_block(own[map]);
        if (threadIdx.x == 0)
            parts[((Index)(image * groups + group) * 8 + map) * count + part] = found;
        __syncthreads();  // of_block's memory serves the next map
    }
}

// The factor and the shift that a norm gives each map, as common/norm_scaling.cuh says.
extern "C" __global__ void __launch_bounds__(THREADS)
    set_scaling(const Partial* __restrict__ parts, int each, long long voxels,
                const float* __restrict__ weights, const float* __restrict__ biases, float eps,
                float* __restrict__ scaling, int maps) {
    const auto sums = [&](int image, int first) {
        return of_parts(parts + ((long long)image * maps + first) * each, NORMED_TOGETHER * each);
    };
    scale_group<NORMED_TOGETHER>(sums, voxels, weights, biases, eps, scaling, maps,
                                 [](int, int) { return 0.0; });
}

// The same from the sums of a convolution, which come image by image and part by part.
extern "C" __global__ void __launch_bounds__(THREADS)
    set_scaling_of_sums(const Partial* __restrict__ parts, int each, long long voxels,
                        const float* __restrict__ weights, const float* __restrict__ biases,
                        float eps, float* __restrict__ scaling, int maps) {
    const auto sums = [&](int image, int first) {
        Partial own = nothing();
        for (int i = threadIdx.x; i < NORMED_TOGETHER * each; i += THREADS) {
            const long long part = (long long)image * each + i / NORMED_TOGETHER;
            own.take(parts[part * maps + first + i % NORMED_TOGETHER]);
        }
        return of_block(own);
    };
    scale_group<NORMED_TOGETHER>(sums, voxels, weights, biases, eps, scaling, maps,
                                 [](int, int) { return 0.0; });
}
