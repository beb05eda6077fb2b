// Convolution of few input maps by products of tensor cores, whose output is packed.
//
// The left side of a product is 16 voxels side by side along x, x 16 taps. The right side is the
// weights of these taps x 8 output maps. So sums lie as a packed value stores them: a lane has two
// maps of a voxel, four lanes have its 8 maps, and a warp stores 128 bytes at a time.
//
// A block copies the input that it sees into shared memory, while it computes the tile before. Then
// it rounds numbers to float16, and keeps two numbers side by side along x as a word. So a word is
// what a lane gives to a product: two taps of a voxel. If a row of the
// kernel has an odd number of taps, its last pair begins one tap early, with a weight of zero. A
// voxel never multiplies a number that it does not see, because that might be infinite.
//
// The numbers of each map may be added up, and their squares, for a norm (SUMS_MAPS). Those of a
// warp's voxels are added up in float32, and then to the warp's own sums in float64, in shared memory.
//
// Sizes are macros (see first_layer_tiles.py). Other functions come from common/shared_copies.cuh,
// common/float16_pair.cuh, common/lane_sums.cuh, common/activation.py, direct_tensor/ranges.cuh and
// packed/records.cuh.

constexpr int LANES = 32;
constexpr int WARPS = THREADS / LANES;
constexpr int UNIT = 16;  // voxels of a product
constexpr int UNITS_X = TILE_X / UNIT;
constexpr int WARP_ROWS = UNITS / UNITS_X;  // rows of a warp's units, in a plane
constexpr int WORDS = IN_MAPS * SEEN_Z * SEEN_Y * PITCH;
constexpr int WARP_SUMS = 2 * PASSES * EIGHTS * 8;  // of each map, and of its squares
constexpr int SUM_WORDS = SUMS_MAPS * WARPS * WARP_SUMS * 2;
static_assert(UNITS % UNITS_X == 0 && TILE_Y % WARP_ROWS == 0, "a warp has whole rows of a plane");
static_assert(TILE_Z * TILE_Y == WARPS * WARP_ROWS, "warps have all rows");

__device__ __forceinline__ unsigned finite_bits(float value) {
    const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
    return bits < bits_of(128) ? bits : 0;
}

// Notes the bits of the largest number of an input.
extern "C" __global__ void __launch_bounds__(THREADS)
    find_largest(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
                 unsigned* largest, int images, int size_z, int size_y, int size_x) {
    const unsigned rows = (unsigned)images * IN_MAPS * size_z * size_y;
    unsigned most = 0;
    for (unsigned row = blockIdx.x * WARPS + threadIdx.x / LANES; row < rows;
         row += gridDim.x * WARPS) {
        const int y = row % size_y, z = row / size_y % size_z;
        const int map = row / size_y / size_z % IN_MAPS, image = row / size_y / size_z / IN_MAPS;
        const float* values = in + image * in_n + map * in_f + z * in_z + y * in_y;
#pragma unroll 4
        for (int x = threadIdx.x % LANES; x < size_x; x += LANES)
            most = max(most, finite_bits(values[x]));
    }
    note_largest(largest, most);
}

// The first output voxel of a tile.
struct Place {
    int item, z, y, x;
};

__device__ __forceinline__ Place place_of(unsigned tile, unsigned tiles_z, unsigned tiles_y,
                                          unsigned tiles_x) {
    Place place;
    place.x = tile % tiles_x * TILE_X;
    tile /= tiles_x;
    place.y = tile % tiles_y * TILE_Y;
    tile /= tiles_y;
    place.z = tile % tiles_z * TILE_Z;
    place.item = tile / tiles_z;
    return place;
}

// Starts to copy the input that a block sees, and zeros for what lies beyond its end. A thread has
// one number of every few rows.
__device__ __forceinline__ void bring(unsigned given, const float* source, Index in_f, Index in_z,
                                      int in_y, int left_z, int left_y, int left_x) {
    constexpr int ROWS = SEEN_Z * SEEN_Y, TOGETHER = THREADS / SEEN_X;
    const int x = threadIdx.x % SEEN_X;
    int first = threadIdx.x / SEEN_X;
    if (first >= TOGETHER) return;
    asm volatile("" : "+r"(first));  // keeps what depends on it out of registers of other work
#pragma unroll 1
    for (int map = 0; map < IN_MAPS; ++map) {
#pragma unroll 2
        for (int row = first; row < ROWS; row += TOGETHER) {
            const int y = row % SEEN_Y, z = row / SEEN_Y;
            const bool present = x < left_x && y < left_y && z < left_z;
            const float* number = source + z * in_z + y * in_y + x;
            copy_word_or_zero(given + (row * PITCH + x) * 4, present ? number : source, present);
        }
        source += in_f;
        given += ROWS * PITCH * 4;
    }
}

// Makes words of numbers that are there, and behind all of them those of low parts. The word after a
// row's last number is no one's.
__device__ __forceinline__ void pair_up(unsigned* image, const float* given, float scale) {
#pragma unroll 4
    for (int i = threadIdx.x; i < WORDS; i += THREADS) {
        const float a = given[i] * scale, b = KERNEL_X > 1 ? given[i + 1] * scale : 0.0f;
        image[i] = rounded_pair(a, b);
        if (PARTS == 2) image[WORDS + i] = rounding_of(a, b, image[i]);
    }
}

// Sums the products of a warp's voxels with EIGHTS times 8 output maps. `seen` is the first word
// that the lane's voxel sees; `weights` and `taps` are the lane's.
__device__ __forceinline__ void multiply(float (&sums)[UNITS][EIGHTS][4], const unsigned* seen,
                                         const uint2* __restrict__ weights,
                                         const int2* __restrict__ taps) {
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
        for (int group = 0; group < EIGHTS; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[unit][group][i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        const int2 pair = __ldg(taps + step * 4);
        // High parts with high ones, low ones with high ones, high ones with low ones.
#pragma unroll
        for (int of_weights = 0; of_weights < PARTS; ++of_weights) {
            uint2 right[EIGHTS];
#pragma unroll
            for (int group = 0; group < EIGHTS; ++group)
                right[group] =
                    __ldg(weights + ((step * PARTS + of_weights) * EIGHTS + group) * LANES);
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
                for (int part = 0; part < PARTS - of_weights; ++part) {
                    const unsigned* at =
                        seen + part * WORDS + unit / UNITS_X * PITCH + unit % UNITS_X * UNIT;
                    const unsigned left[4] = {at[pair.x], at[pair.x + 8], at[pair.y],
                                              at[pair.y + 8]};
#pragma unroll
                    for (int group = 0; group < EIGHTS; ++group)
                        multiply_add(sums[unit][group], left, right[group].x, right[group].y,
                                     true);
                }
        }
    }
}

// in: (image, IN_MAPS, z, y, x) by strides; out: packed, with strides in voxels. weights: (pass,
// step, part, group, lane, 2); taps: the words that each lane's two of 8 pairs of taps lie away,
// (step, lane of 4, 2). map_sums: what each block adds up of an image, (image, block, map, sum or sum
// of squares), which is zero if the block has no tile of it. Tiles are counted through x, y, z and
// images.
#if SUMS_MAPS
#define MAP_SUMS , double *map_sums
#else
#define MAP_SUMS
#endif
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, int in_y,
             int size_z, int size_y, int size_x, const unsigned* __restrict__ largest,
             const uint2* __restrict__ weights, const int2* __restrict__ taps,
             const float2* __restrict__ factors, const float2* __restrict__ biases,
             float weight_sum, float most_bias, unsigned* __restrict__ out, Index out_n,
             Index out_f, Index out_z, int out_y, Record* made, int groups, int out_size_z,
             int out_size_y, int out_size_x, unsigned tiles_z, unsigned tiles_y, unsigned tiles_x,
             unsigned count MAP_SUMS) {
    extern __shared__ __align__(16) unsigned shared[];
    double* sums_of_warps = (double*)shared;
    unsigned* image = shared + SUM_WORDS;
    const float* given = (const float*)(image + PARTS * WORDS);
    constexpr int VOXEL = 4;  // words of a voxel of an output
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES * WARP_ROWS;
    const int of_tile_z = row / TILE_Y, of_tile_y = row % TILE_Y, of_unit = lane / 4;
    const float scale = scale_for(*largest);
    const float bound = fmaf(__uint_as_float(*largest), weight_sum, most_bias);
    const float out_scale = scale_below(bound), sum_scale = KEEPS_UNIT ? out_scale : 1.0f;
    const float product_scale = sum_scale / scale;
    const unsigned* seen = image + (of_tile_z * SEEN_Y + of_tile_y) * PITCH + of_unit;

    const auto bring_tile = [&](const Place& at) {
        bring(shared_address(given),
              in + at.item * in_n + at.z * in_z + (Index)at.y * in_y + at.x, in_f, in_z, in_y,
              size_z - at.z, size_y - at.y, size_x - at.x);
    };
    Place at = place_of(blockIdx.x, tiles_z, tiles_y, tiles_x);
    bring_tile(at);
    for (int i = threadIdx.x; i < SUM_WORDS / 2; i += THREADS) sums_of_warps[i] = 0.0;
    float most = 0.0f;
#if SUMS_MAPS
    // Writes what the block has added up of an image, and begins anew.
    const auto write_sums = [&](Index item) {
        const double unscaled = 1.0 / out_scale;
        for (int i = threadIdx.x; i < groups * 8 * 2; i += THREADS) {
            double total = 0.0;
            for (int warp = 0; warp < WARPS; ++warp) {
                total += sums_of_warps[warp * WARP_SUMS + i];
                sums_of_warps[warp * WARP_SUMS + i] = 0.0;
            }
            map_sums[(item * gridDim.x + blockIdx.x) * (groups * 8 * 2) + i] =
                total * (i % 2 ? unscaled * unscaled : unscaled);
        }
    };
#endif
    for (unsigned index = blockIdx.x; index < count; index += gridDim.x) {
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();  // the tile is there, and all warps have read the one before
#if SUMS_MAPS
        if (index != blockIdx.x) {  // found anew: no register is left to keep it
            const Index before = place_of(index - gridDim.x, tiles_z, tiles_y, tiles_x).item;
            if (before != at.item) write_sums(before);
        }
#endif
        pair_up(image, given, scale);
        __syncthreads();
        const Index item = at.item;
        const int z = at.z + of_tile_z, y = at.y + of_tile_y, x = at.x + of_unit;
        if (index + gridDim.x < count) {
            at = place_of(index + gridDim.x, tiles_z, tiles_y, tiles_x);
            bring_tile(at);
        }
        unsigned* target = out + (item * out_n + z * out_z + (Index)y * out_y + x) * VOXEL + lane % 4;
        unsigned inside = 0;
#pragma unroll
        for (int i = 0; i < 2 * UNITS; ++i)
            if (z < out_size_z && y + i / 2 / UNITS_X < out_size_y &&
                x + i % (2 * UNITS_X) * 8 < out_size_x)
                inside |= 1u << i;
#pragma unroll 1
        for (int pass = 0; pass < PASSES; ++pass) {
            float sums[UNITS][EIGHTS][4];
            int own = lane;  // keeps what is the same for all tiles out of registers between them
            asm volatile("" : "+r"(own));
            multiply(sums, seen, weights + pass * STEPS * PARTS * EIGHTS * LANES + own, taps + own % 4);
#pragma unroll
            for (int of_pass = 0; of_pass < EIGHTS; ++of_pass) {
                const int group = pass * EIGHTS + of_pass;
                if (PASSES > 1 && group >= groups) break;
                float2 factor = __ldg(factors + group * 4 + own % 4);
                float2 bias = __ldg(biases + group * 4 + own % 4);
                factor.x *= product_scale;
                factor.y *= product_scale;
                bias.x *= sum_scale;
                bias.y *= sum_scale;
                float added_up[4] = {};  // two maps, and their squares
#pragma unroll
                for (int i = 0; i < 2 * UNITS; ++i) {
                    const float* sum = sums[i / 2][of_pass] + i % 2 * 2;
                    const float a = scaled_activation(fmaf(sum[0], factor.x, bias.x), out_scale);
                    const float b = scaled_activation(fmaf(sum[1], factor.y, bias.y), out_scale);
                    if (inside & 1u << i)
                        most = fmaxf(most, fmaxf(fabsf(a), fabsf(b)));  // NaN is no number
                    if (SUMS_MAPS) {
                        const float first = inside & 1u << i ? a : 0.0f;
                        const float second = inside & 1u << i ? b : 0.0f;
                        added_up[0] += first;
                        added_up[1] += second;
                        added_up[2] = fmaf(first, first, added_up[2]);
                        added_up[3] = fmaf(second, second, added_up[3]);
                    }
                    unsigned* of_row = target + (Index)(i / 2 / UNITS_X) * (out_y * VOXEL);
                    unsigned* at_voxel = of_row + i % (2 * UNITS_X) * 8 * VOXEL;
                    const unsigned rounded = rounded_pair(a, b);
                    store_if(inside & 1u << i, at_voxel, rounded);
                    if (PARTS == 2)
                        store_if(inside & 1u << i, at_voxel + out_f / PARTS * VOXEL,
                                 rounding_of(a, b, rounded));
                }
#if SUMS_MAPS
                const float total = total_of_lanes(added_up);
                const int number = own / 4;
                if (number < 4)
                    sums_of_warps[threadIdx.x / LANES * WARP_SUMS +
                                  2 * (group * 8 + own % 4 * 2 + number % 2) + number / 2] += total;
#endif
                target += out_f * VOXEL;
            }
        }
    }
#if SUMS_MAPS
    __syncthreads();
    write_sums(at.item);
#endif
    if (blockIdx.x == 0)
        for (int group = threadIdx.x; group < groups; group += THREADS)
            made[group].scale = out_scale;
    // If a number is not finite, the largest of the others is below the bound.
    const unsigned bits = __float_as_uint(fminf(most / out_scale, bound));
    const unsigned of_warp = __reduce_max_sync(0xffffffffu, bits);
    if (lane == 0) atomicMax(&made->largest, of_warp);
}
