// Convolution of few input maps by products of tensor cores, whose output is packed.
//
// The left side of a product is 16 voxels side by side along x, x 16 taps. The right side is the
// weights of these taps x 8 output maps. So sums lie as a packed value stores them: a lane has two
// maps of a voxel, four lanes have its 8 maps, and a warp stores 128 bytes at a time.
//
// A block brings the input that it sees into shared memory in float16, as words of two numbers side
// by side along x. So a word is what a lane gives to a product: two taps of a voxel. If a row of the
// kernel has an odd number of taps, its last pair begins one tap early, with a weight of zero. A
// voxel never multiplies a number that it does not see, because that might be infinite.
//
// Sizes are macros (see first_layer_tiles.py). Other functions come from common/mma.cuh,
// common/float16_pair.cuh, common/activation.py, direct_tensor/ranges.cuh and packed/records.cuh.

constexpr int LANES = 32;
constexpr int WARPS = THREADS / LANES;
constexpr int UNIT = 16;  // voxels of a product
constexpr int UNITS_X = TILE_X / UNIT;
constexpr int WARP_ROWS = UNITS / UNITS_X;  // rows of a warp's units, in a plane
constexpr int SEEN = IN_MAPS * SEEN_Z * SEEN_Y * SEEN_X;
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
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % LANES == 0) atomicMax(largest, most);
}

// Brings the input that a block sees, and zeros for what lies beyond its end.
__device__ __forceinline__ void bring(unsigned* image, const float* source, Index in_f, Index in_z,
                                      Index in_y, int left_z, int left_y, int left_x,
                                      float scale) {
    int i = threadIdx.x;
    asm volatile("" : "+r"(i));  // keeps what depends on it out of registers that other work needs
#pragma unroll 4
    for (; i < SEEN; i += THREADS) {
        const int x = i % SEEN_X, row = i / SEEN_X;
        const int y = row % SEEN_Y, z = row / SEEN_Y % SEEN_Z, map = row / SEEN_Y / SEEN_Z;
        const float* value = source + map * in_f + z * in_z + y * in_y + x;
        const bool in_row = z < left_z && y < left_y;
        const float own = in_row && x < left_x ? value[0] : 0.0f;
        const float next = KERNEL_X > 1 && in_row && x + 1 < left_x ? value[1] : 0.0f;
        image[row * PITCH + x] = rounded_pair(own * scale, next * scale);
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
#pragma unroll(STEPS <= 3 ? STEPS : 1)
    for (int step = 0; step < STEPS; ++step) {
        const int2 pair = __ldg(taps + step * 4);
        uint2 right[EIGHTS];
#pragma unroll
        for (int group = 0; group < EIGHTS; ++group)
            right[group] = __ldg(weights + (step * EIGHTS + group) * LANES);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const unsigned* at = seen + unit / UNITS_X * PITCH + unit % UNITS_X * UNIT;
            const unsigned left[4] = {at[pair.x], at[pair.x + 8], at[pair.y], at[pair.y + 8]};
#pragma unroll
            for (int group = 0; group < EIGHTS; ++group)
                multiply_add(sums[unit][group], left, right[group].x, right[group].y, true);
        }
    }
}

// in: (image, IN_MAPS, z, y, x) by strides; out: packed, with strides in voxels. weights: (pass,
// step, group, lane, 2); taps: the words that each lane's two of 8 pairs of taps lie away, (step,
// lane of 4, 2). Tiles are counted through x, y, z and images.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve(const float* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
             int size_z, int size_y, int size_x, const unsigned* __restrict__ largest,
             const uint2* __restrict__ weights, const int2* __restrict__ taps,
             const float2* __restrict__ factors, const float2* __restrict__ biases,
             float weight_sum, float most_bias, unsigned* __restrict__ out, Index out_n,
             Index out_f, Index out_z, Index out_y, Record* made, int groups, int out_size_z,
             int out_size_y, int out_size_x, int tiles_z, int tiles_y, int tiles_x, Index count) {
    extern __shared__ __align__(16) unsigned image[];
    constexpr int WORDS = 4;  // of a voxel of an output
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES * WARP_ROWS;
    const int of_tile_z = row / TILE_Y, of_tile_y = row % TILE_Y, of_unit = lane / 4;
    const float scale = scale_for(*largest), unscaled = 1.0f / scale;
    const float out_scale = scale_below(fmaf(__uint_as_float(*largest), weight_sum, most_bias));
    const unsigned* seen = image + (of_tile_z * SEEN_Y + of_tile_y) * PITCH + of_unit;
    weights += lane;
    taps += lane % 4;
    unsigned most = 0;
    for (Index index = blockIdx.x; index < count; index += gridDim.x) {
        Index tile = index;
        const int first_x = tile % tiles_x * TILE_X;
        tile /= tiles_x;
        const int first_y = tile % tiles_y * TILE_Y;
        tile /= tiles_y;
        const int first_z = tile % tiles_z * TILE_Z;
        const Index item = tile / tiles_z;
        __syncthreads();  // all warps have read the tile before
        bring(image, in + item * in_n + first_z * in_z + first_y * in_y + first_x, in_f, in_z,
              in_y, size_z - first_z, size_y - first_y, size_x - first_x, scale);
        __syncthreads();
        const int z = first_z + of_tile_z, y = first_y + of_tile_y, x = first_x + of_unit;
        unsigned* target = out + (item * out_n + z * out_z + y * out_y + x) * WORDS + lane % 4;
        const Index row_words = out_y * WORDS, group_words = out_f * WORDS;
        unsigned inside = 0;
#pragma unroll
        for (int i = 0; i < 2 * UNITS; ++i)
            if (z < out_size_z && y + i / 2 / UNITS_X < out_size_y &&
                x + i % (2 * UNITS_X) * 8 < out_size_x)
                inside |= 1u << i;
#pragma unroll 1
        for (int pass = 0; pass < PASSES; ++pass) {
            float sums[UNITS][EIGHTS][4];
            asm volatile("" : "+l"(weights));  // keeps weights out of registers between tiles
            multiply(sums, seen, weights + pass * STEPS * EIGHTS * LANES, taps);
#pragma unroll
            for (int of_pass = 0; of_pass < EIGHTS; ++of_pass) {
                const int group = pass * EIGHTS + of_pass;
                if (PASSES > 1 && group >= groups) break;
                float2 factor = __ldg(factors + group * 4 + lane % 4);
                const float2 bias = __ldg(biases + group * 4 + lane % 4);
                factor.x *= unscaled;
                factor.y *= unscaled;
#pragma unroll
                for (int i = 0; i < 2 * UNITS; ++i) {
                    const float* sum = sums[i / 2][of_pass] + i % 2 * 2;
                    const float a = activation(fmaf(sum[0], factor.x, bias.x));
                    const float b = activation(fmaf(sum[1], factor.y, bias.y));
                    if (inside & 1u << i) {
                        most = max(most, max(finite_bits(a), finite_bits(b)));
                        target[i / 2 / UNITS_X * row_words + i % (2 * UNITS_X) * 8 * WORDS] =
                            rounded_pair(a * out_scale, b * out_scale);
                    }
                }
                target += group_words;
                asm("" : "+l"(target));  // makes each address one addition
            }
        }
    }
    if (blockIdx.x == 0)
        for (int group = threadIdx.x; group < groups; group += THREADS)
            made[group].scale = out_scale;
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0) atomicMax(&made->largest, most);
}
