// Pointwise convolution of packed values to up to 8 maps that are not packed: it takes as long as
// the memory.
//
// The left side of a product is 16 voxels side by side along x, x 16 input maps. A lane's part of it
// lies in memory as it is: two maps of a voxel. So a warp loads the left sides of all its products at
// once, 128 bytes at a time, without shared memory. It waits for no other warp.
//
// A norm may be applied to what is loaded (NORMS). Its numbers have a known bound, so a scale is known.
//
// Macros: UNITS: products of voxels side by side that a warp has; IN_GROUPS: groups of 8 input maps;
// THREADS of a block; BLOCKS of a multiprocessor.
// Other functions come from common/mma.cuh, common/activation.py, direct_tensor/ranges.cuh and
// packed/records.cuh.

constexpr int LANES = 32;
constexpr int CHUNKS = (IN_GROUPS + 1) / 2;  // of 16 input maps
constexpr int SPAN = UNITS * 16;             // voxels of a warp
constexpr int WORDS = 4;                     // of a voxel of a group

// A norm of two neighbouring maps, and the activation after it.
struct PairNorm {
    float2 factor, shift, slope;

    // Normalizes two numbers of a voxel, and scales them.
    __device__ __forceinline__ float2 of(float2 number, float scale) const {
        return {activated(fmaf(number.x, factor.x, shift.x), slope.x) * scale,
                activated(fmaf(number.y, factor.y, shift.y), slope.y) * scale};
    }
};

#if NORMS
#define NORM_NUMBERS \
    , const float2 *__restrict__ scaling, const float2 *__restrict__ slopes, float most
#else
#define NORM_NUMBERS
#endif

// in: packed, with strides in voxels; out: (image, maps, z, y, x) by strides. weights: (chunk, part,
// lane, 2); factors and biases: (8). A norm has a scaling (image, factor or shift, map), a slope for
// each map, and a bound on its numbers. Each warp takes one span of a row after another.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve(const unsigned* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
             const Record* __restrict__ records, const uint2* __restrict__ weights,
             const float2* __restrict__ factors, const float2* __restrict__ biases,
             float* __restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y, int maps,
             int size_z, int size_y, int size_x, int spans, Index count NORM_NUMBERS) {
    const int lane = threadIdx.x % LANES, map = lane % 4 * 2;
    const float2 factor = __ldg(factors + lane % 4), bias = __ldg(biases + lane % 4);
#if NORMS
    const float normed_scale = scale_below(most);
#endif
    const Index warps = (Index)gridDim.x * (THREADS / LANES);
    for (Index index = (Index)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; index < count;
         index += warps) {
        const int x = index % spans * SPAN + lane / 4;
        Index row = index / spans;
        const int y = row % size_y;
        row /= size_y;
        const int z = row % size_z;
        const Index item = row / size_z;
        const unsigned* source = in + (item * in_n + z * in_z + y * in_y + x) * WORDS + lane % 4;
        float sums[UNITS][4] = {};
#pragma unroll(CHUNKS <= 2 ? CHUNKS : 1)
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            unsigned left[PARTS][UNITS][4];
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
                for (int i = 0; i < 4; ++i) {  // two voxels 8 apart, of two groups
                    const int group = 2 * chunk + i / 2, of_span = unit * 16 + i % 2 * 8;
                    const bool present = x + of_span < size_x && group < IN_GROUPS;
#pragma unroll
                    for (int part = 0; part < PARTS; ++part) {
                        const Index at = group * in_f + part * in_f / PARTS + of_span;
                        left[part][unit][i] = present ? source[at * WORDS] : 0;
                    }
                }
            uint2 right[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                right[part] = __ldg(weights + (chunk * PARTS + part) * LANES + lane);
#if NORMS
#pragma unroll
            for (int of_chunk = 0; of_chunk < 2; ++of_chunk) {
                const int group = 2 * chunk + of_chunk;
                if (group >= IN_GROUPS) continue;
                const float2* of_image = scaling + item * (2 * IN_GROUPS * 4) + group * 4 + lane % 4;
                PairNorm norm = {__ldg(of_image), __ldg(of_image + IN_GROUPS * 4),
                                 __ldg(slopes + group * 4 + lane % 4)};
                norm.factor.x /= records[group].scale;
                norm.factor.y /= records[group].scale;
#pragma unroll
                for (int unit = 0; unit < UNITS; ++unit)
#pragma unroll
                    for (int i = 2 * of_chunk; i < 2 * of_chunk + 2; ++i) {
                        float2 number = number_of(left[0][unit][i]);
                        if (PARTS == 2) {
                            const float2 low = number_of(left[PARTS - 1][unit][i]);
                            number = {number.x + low.x, number.y + low.y};
                        }
                        number = norm.of(number, normed_scale);
                        left[0][unit][i] = rounded_pair(number.x, number.y);
                        if (PARTS == 2)
                            left[PARTS - 1][unit][i] =
                                rounding_of(number.x, number.y, left[0][unit][i]);
                    }
            }
            const float unscaled = 1.0f / normed_scale;
#else
            const float unscaled = 1.0f / records[2 * chunk].scale;
#endif
#pragma unroll
            for (int unit = 0; unit < UNITS; ++unit) {
                float product[4];
                multiply_add(product, left[0][unit], right[0].x, right[0].y, false);
                if (PARTS == 2) {  // the product of both low parts is below the rounding
                    multiply_add(product, left[PARTS - 1][unit], right[0].x, right[0].y, true);
                    multiply_add(product, left[0][unit], right[PARTS - 1].x, right[PARTS - 1].y,
                                 true);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[unit][i] = fmaf(product[i], unscaled, sums[unit][i]);
            }
        }
        float* target = out + item * out_n + map * out_f + z * out_z + y * out_y + x;
#pragma unroll
        for (int i = 0; i < 2 * UNITS; ++i) {
            const float* sum = sums[i / 2] + i % 2 * 2;
            const bool inside = x + i * 8 < size_x;
            store_if(inside && map < maps, target + i * 8,
                     activation(fmaf(sum[0], factor.x, bias.x)));
            store_if(inside && map + 1 < maps, target + out_f + i * 8,
                     activation(fmaf(sum[1], factor.y, bias.y)));
        }
    }
}
