// Sums, or maxima, of the voxels of each map: each block reduces a part of a map.
//
// Macros: MAPS_TOGETHER: the maps of a group whose values are summed less the group's first sample,
// or 0 for plain sums; IS_MAX: maxima instead of sums; TOGETHER: voxels of a row that a thread reads
// at once, 1 or 4. `larger` comes from common/larger.cuh, the
// rest from common/voxels.cuh. Which thread adds up what depends on the shape only, so results do
// not differ from call to call.

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int RUN = 16 / TOGETHER;  // planes; 16 values are added up in float32, then in float64

// What a part of a map gives: the sum and the sum of squares, or the maximum and nothing.
struct Partial {
    double total, squares;

    __device__ __forceinline__ void take(const Partial& other) {
        total = IS_MAX ? (double)larger((float)total, (float)other.total) : total + other.total;
        squares += other.squares;
    }
};

__device__ __forceinline__ Partial nothing() {
    return {IS_MAX ? (double)__uint_as_float(0xff800000u) : 0.0, 0.0};
}

// Returns the reduction of what all threads of a block have, to its first thread.
__device__ __forceinline__ Partial of_block(Partial own) {
    __shared__ Partial of_warps[WARPS];
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        own.take({__shfl_down_sync(0xffffffffu, own.total, apart),
                  __shfl_down_sync(0xffffffffu, own.squares, apart)});
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) own.take(of_warps[warp]);
    }
    return own;
}

// Returns the reduction of several blocks' partial results, to the first thread.
__device__ __forceinline__ Partial of_parts(const Partial* parts, int count) {
    Partial own = nothing();
    for (int i = threadIdx.x; i < count; i += THREADS) own.take(parts[i]);
    return of_block(own);
}

// Returns the number that is taken off the values of a map before they are added up.
__device__ __forceinline__ float reference_of(const float* in, Index in_n, Index in_f, int image,
                                              int map) {
    if (MAPS_TOGETHER == 0) return 0.0f;
    const int together = MAPS_TOGETHER > 0 ? MAPS_TOGETHER : 1;
    return in[image * in_n + map / together * together * in_f];
}

// Writes what each block finds. Blocks of a map follow each other: `shares` of its planes, each with
// `columns` blocks. in: (image, map, z, y, x) by strides; if four voxels are read at once, rows begin
// at 16 bytes, and size_x counts four voxels each.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_maps(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
                Partial* __restrict__ parts, int columns, int shares, int maps, int size_z,
                int size_y, int size_x) {
    const unsigned of_map = blockIdx.x / columns, share = of_map % shares;
    const int image = of_map / shares / maps, map = of_map / shares % maps;
    const unsigned cell = blockIdx.x % columns * THREADS + threadIdx.x;
    const int each = (size_z + shares - 1) / shares;
    const int first = share * each, last = min(size_z, first + each);
    const float taken_off = reference_of(in, in_n, in_f, image, map);
    Partial own = nothing();
    if (cell < unsigned(size_y) * size_x) {
        const float* column = in + image * in_n + map * in_f + cell / size_x * in_y +
                              cell % size_x * TOGETHER;
        for (int start = first; start < last; start += RUN) {
            float total = (float)nothing().total, squares = 0.0f;
            const auto take = [&](float found) {
                const float value = found - taken_off;
                total = IS_MAX ? larger(total, value) : total + value;
                squares = fmaf(value, value, squares);
            };
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                if (start + i >= last) continue;
                const float* at = column + (start + i) * in_z;
                if (TOGETHER == 4) {
                    const float4 four = *reinterpret_cast<const float4*>(at);
                    take(four.x);
                    take(four.y);
                    take(four.z);
                    take(four.w);
                } else {
                    take(*at);
                }
            }
            own.take({total, squares});
        }
    }
    own = of_block(own);
    if (threadIdx.x == 0) parts[blockIdx.x] = own;
}
