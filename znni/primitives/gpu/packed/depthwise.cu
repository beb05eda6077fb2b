// Depthwise convolution of packed values from shared memory: as depthwise/depthwise.cu, but a thread has
// one position along x of the 8 maps of a group.
//
// A thread loads the column of voxels that its rows see for one tap along x. The column stays in registers
// while the taps along y and z are added, whose weights all lanes read at the same address.
//
// If SUMS, a block also adds up each map that it makes, and its squares, for the norm after it. If
// LEAVES_OUT, it adds up only the first planes, rows and columns.
//
// Sizes are macros (see depthwise/geometry.py). `activated` comes from common/activation.py, voxels and
// records from records.cuh, scales from direct_tensor/ranges.cuh, the work of a block from
// depthwise/blocks.cuh, and copies from common/shared_copies.cuh.

constexpr int COLUMN = (ROWS - 1) * STRIDE_Y + KERNEL_Y;

// Weights: (plane of the step, tap along x, tap along y, live plane, phase along x, map of the group).
constexpr int ROW_WEIGHTS = LIVE * PHASES_X * 2;  // vectors
constexpr int WEIGHTS = STRIDE_Z * KERNEL_X * KERNEL_Y * ROW_WEIGHTS;

typedef float Sums[LIVE][ROWS][PHASES_X][8];

// Returns a voxel of shared memory. If ADDS_PARTS, its numbers lie there as float32: the first four in the place
// of the high parts, and the others in that of the low parts.
__device__ __forceinline__ Eight staged(const uint4* voxel) {
    if (!ADDS_PARTS) return numbers_of(stored_at(voxel, PLANE * PARTS), 1.0f);
    return of_two_vectors(reinterpret_cast<const float4*>(voxel)[0],
                          reinterpret_cast<const float4*>(voxel)[PLANE]);
}

// Adds the parts of each number of a voxel in shared memory, once for all threads and taps that see it.
__device__ __forceinline__ void add_parts(uint4* voxel) {
    const Eight sums = numbers_of(stored_at(voxel, PLANE * PARTS), 1.0f);
    float4* to = reinterpret_cast<float4*>(voxel);
    to[0] = make_float4(sums.of[0], sums.of[1], sums.of[2], sums.of[3]);
    to[PLANE] = make_float4(sums.of[4], sums.of[5], sums.of[6], sums.of[7]);
}

// Adds the products of a plane of input to the sums. `tile` begins at the thread's first voxel.
__device__ __forceinline__ void add_products(Sums& sums, const uint4* tile, const float4* weights,
                                             int first, int last) {
#pragma unroll UNROLLED
    for (int kernel_x = 0; kernel_x < KERNEL_X; ++kernel_x) {
        Eight column[COLUMN];
#pragma unroll
        for (int y = 0; y < COLUMN; ++y) column[y] = staged(tile + y * PITCH + kernel_x);
#pragma unroll
        for (int kernel_y = 0; kernel_y < KERNEL_Y; ++kernel_y)
#pragma unroll
            for (int live = 0; live < LIVE; ++live) {
                // Planes of output before the first one, and after the last one, are not stored.
                if (SKIPS && (live < first || live > last)) continue;
#pragma unroll
                for (int phase = 0; phase < PHASES_X; ++phase) {
                    const float4* from = weights + (kernel_x * KERNEL_Y + kernel_y) * ROW_WEIGHTS +
                                         (live * PHASES_X + phase) * 2;
                    const float4 low = from[0], high = from[1];
                    const float weight[8] = {low.x,  low.y,  low.z,  low.w,
                                             high.x, high.y, high.z, high.w};
#pragma unroll
                    for (int y = 0; y < ROWS; ++y)
#pragma unroll
                        for (int map = 0; map < 8; ++map) {
                            float& sum = sums[live][y][phase][map];
                            sum = fmaf(column[y * STRIDE_Y + kernel_y].of[map], weight[map], sum);
                        }
                }
            }
    }
}

// Writes what a block adds up of the maps of a group. All threads call it once.
__device__ __forceinline__ void write_sums(const Eight& total, const Eight& squares, double* sums) {
    __shared__ float of_warps[WARPS][16];
#pragma unroll
    for (int number = 0; number < 16; ++number) {
        float own = number % 2 ? squares.of[number / 2] : total.of[number / 2];
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2)
            own += __shfl_down_sync(0xffffffffu, own, apart);
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][number] = own;
    }
    __syncthreads();
    if (threadIdx.x >= 16) return;
    double sum = 0.0;
    for (int warp = 0; warp < WARPS; ++warp) sum += of_warps[warp][threadIdx.x];
    sums[threadIdx.x] = sum;
}

// in and out: (image, group, z, y, x) by strides in voxels, with a record for each group. weights: (group,
// phase along z, phase along y, WEIGHTS); biases and slopes: (map). sums: (image, part, map, sum or sum of
// squares).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    depthwise(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
              const Record* __restrict__ records, int size_z, int size_y, int size_x,
              const float4* __restrict__ weights, const float* __restrict__ biases,
              const float* __restrict__ slopes, float most_factor, float most_shift,
              uint4* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y,
              Record* __restrict__ made, int groups, int planes, int rows, int columns, int tiles_x,
              int tiles_y, int tiles_z, int each
#if SUMS
              ,
              double* __restrict__ map_sums, int summed_z, int summed_y, int summed_x
#endif
    ) {
    extern __shared__ float4 shared[];
    float4* own_weights = shared;
    uint4* tiles = reinterpret_cast<uint4*>(shared + WEIGHTS);

    const Place place = place_of_block(tiles_x, tiles_y, tiles_z, each, groups);
    const int group = place.map;

    const float4* given =
        weights + Index((group * PHASES_Z + place.phase_z) * PHASES_Y + place.phase_y) * WEIGHTS;
    const float unscaled = 1.0f / records[group].scale;
    for (int i = threadIdx.x; i < WEIGHTS; i += THREADS) {
        const float4 four = given[i];
        own_weights[i] = make_float4(four.x * unscaled, four.y * unscaled, four.z * unscaled,
                                     four.w * unscaled);
    }

    const float bound = fmaf(largest_of(records, groups), most_factor, most_shift);
    const float scale = scale_below(bound);
    if (blockIdx.x == 0)
        for (int other = threadIdx.x; other < groups; other += THREADS) made[other].scale = scale;

    // Beyond the last plane, row or column any voxel will do, because sums of it are not stored.
    in += place.image * in_n + group * in_f + Index(place.y) * STRIDE_Y * in_y + place.x * STRIDE_X;
    int from[COPIES];
    find_sources(from, place, size_y, size_x, int(in_y));
    const int made_planes = min(each, planes - place.z), steps = made_planes + LIVE - 1;
    const auto bring = [&](int step) {
        uint4* target = tiles + step % (AHEAD + 1) * (STRIDE_Z * PARTS * PLANE) + threadIdx.x;
#pragma unroll
        for (int plane = 0; plane < STRIDE_Z; ++plane) {
            const uint4* source = in + min((place.z + step) * STRIDE_Z + plane, size_z - 1) * in_z;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int i = 0; i < COPIES; ++i)
                    if (copies(i))
                        copy_16_bytes(
                            shared_address(target + (plane * PARTS + part) * PLANE + i * THREADS),
                            source + part * in_f / PARTS + from[i]);
        }
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < steps) bring(step);
        commit_copies();
    }

    const int lane_x = threadIdx.x % LANES_X, lane_y = threadIdx.x / LANES_X;
    const int x = place.x + lane_x, y = place.y + lane_y * ROWS;
    const int of_thread = lane_y * ROWS * STRIDE_Y * PITCH + lane_x * STRIDE_X;
    const bool works = lane_y < LANES_Y && x < columns && y < rows;
    out += place.image * out_n + group * out_f + Index(place.z * PHASES_Z + place.phase_z) * out_z +
           Index(y * PHASES_Y + place.phase_y) * out_y + x * PHASES_X;
    const Eight bias = of_eight_maps(biases, group), slope = of_eight_maps(slopes, group);
    Eight total = {}, squares = {};
    float most = 0.0f;
    Sums sums;
#pragma unroll
    for (int live = 0; live < LIVE; ++live)
#pragma unroll
        for (int i = 0; i < ROWS * PHASES_X * 8; ++i)
            sums[live][i / (8 * PHASES_X)][i / 8 % PHASES_X][i % 8] = bias.of[i % 8];

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        wait_for_copies<AHEAD - 1>();
        uint4* const brought = tiles + step % (AHEAD + 1) * (STRIDE_Z * PARTS * PLANE);
        if (ADDS_PARTS) {
#pragma unroll
            for (int plane = 0; plane < STRIDE_Z; ++plane)
#pragma unroll
                for (int i = 0; i < COPIES; ++i)  // those of this thread have arrived
                    if (copies(i))
                        add_parts(brought + plane * PARTS * PLANE + threadIdx.x + i * THREADS);
        }
        __syncthreads();
        if (step + AHEAD < steps) bring(step + AHEAD);
        commit_copies();
        if (!works) continue;
        const uint4* tile = brought + of_thread;
#pragma unroll
        for (int plane = 0; plane < STRIDE_Z; ++plane)
            add_products(sums, tile + plane * PARTS * PLANE,
                         own_weights + plane * (KERNEL_X * KERNEL_Y * ROW_WEIGHTS),
                         step - made_planes + 1, step);
        if (step >= LIVE - 1) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (y + row >= rows) continue;
#pragma unroll
                for (int phase = 0; phase < PHASES_X; ++phase) {
                    Eight numbers;
#if SUMS
                    const bool is_summed =
                        (place.z + step - LIVE + 1) * PHASES_Z + place.phase_z < summed_z &&
                        (y + row) * PHASES_Y + place.phase_y < summed_y &&
                        x * PHASES_X + phase < summed_x;
#endif
#pragma unroll
                    for (int map = 0; map < 8; ++map) {
                        const float value =
                            activated(sums[LIVE - 1][row][phase][map], slope.of[map]);
                        most = fmaxf(most, fabsf(value));  // NaN is no number
#if SUMS
                        if (!LEAVES_OUT || is_summed) {
                            total.of[map] += value;
                            squares.of[map] = fmaf(value, value, squares.of[map]);
                        }
#endif
                        numbers.of[map] = value;
                    }
                    store(out + row * PHASES_Y * out_y + phase, out_f, stored_of(numbers, scale));
                }
            }
            out += PHASES_Z * out_z;
        }
#pragma unroll
        for (int live = LIVE - 1; live >= 0; --live)
#pragma unroll
            for (int i = 0; i < ROWS * PHASES_X * 8; ++i) {
                const int row = i / (8 * PHASES_X), phase = i / 8 % PHASES_X, map = i % 8;
                sums[live][row][phase][map] =
                    live > 0 ? sums[live > 0 ? live - 1 : 0][row][phase][map] : bias.of[map];
            }
    }
#if SUMS
    const unsigned parts = tiles_x * tiles_y * tiles_z * PHASES_Y * PHASES_Z;
    const Index part = Index(place.image) * parts + blockIdx.x % parts;
    write_sums(total, squares, map_sums + (part * groups + group) * 16);
#endif
    // If a number is infinite, the largest of the others is below the bound.
    note_largest(&made->largest, __float_as_uint(fminf(most, bound)));
}
