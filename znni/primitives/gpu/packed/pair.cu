// Two convolutions of one tap of packed values, in one pass: the maps between them stay in registers.
//
// A warp has TILES x 16 voxels, which follow each other. A lane loads the words that tensor cores take as the
// left side from where they lie. It multiplies them by the weights of 16 maps between, and applies the
// activation. The sums of a product lie in registers as the left side of the next one does. So they are
// rounded to float16 there, and multiplied by the weights of all output maps. All weights are in shared memory.
//
// If NORMS, the norm before is applied to what is loaded. If ADDS, the sums are added to the packed value in
// the output's memory.
//
// Macros: IN_GROUPS, BETWEEN: maps between, in sixteens; OUT_TILES: groups of output maps, in twos; OUT_GROUPS;
// TILES, WARPS, BLOCKS, NORMS, ADDS. `multiply_add` comes from common/kernels.py, `activation` from
// common/activation.py, records from records.cuh, and scales from direct_tensor/ranges.cuh.

constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = IN_GROUPS / 2, CHUNKS = BETWEEN / 16;
constexpr int FIRST_WEIGHTS = CHUNKS * STEPS * PARTS * 32;
constexpr int LATER_WEIGHTS = CHUNKS * (OUT_TILES / 2) * PARTS * 32;
constexpr int FIRST_ROWS = CHUNKS * 8, LATER_ROWS = OUT_TILES * 4, NORM_ROWS = NORMS ? IN_GROUPS * 4 : 0;

// The words of 16 voxels that a lane has of 16 maps, part after part.
struct Left {
    unsigned parts[PARTS][4];

    __device__ __forceinline__ float2 numbers(int word) const {
        float2 two = number_of(parts[0][word]);
        if (PARTS == 2) {
            const float2 low = number_of(parts[PARTS - 1][word]);
            two.x += low.x;
            two.y += low.y;
        }
        return two;
    }

    __device__ __forceinline__ void set(int word, float one, float two) {
        parts[0][word] = rounded_pair(one, two);
        if (PARTS == 2) parts[PARTS - 1][word] = rounding_of(one, two, parts[0][word]);
    }
};

// Adds the products of 16 voxels with two groups of maps to their sums: of all parts but both low ones.
__device__ __forceinline__ void add_products(float (&one)[4], float (&two)[4], const Left& left,
                                             const uint4 (&right)[PARTS]) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int other = 0; other < PARTS - part; ++other) {
            multiply_add(one, left.parts[part], right[other].x, right[other].y, true);
            multiply_add(two, left.parts[part], right[other].z, right[other].w, true);
        }
}

// The weights of all parts, which lie one after the other.
struct Right {
    uint4 parts[PARTS];

    __device__ __forceinline__ Right(const uint4* shared, int index) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            parts[part] = shared[(index * PARTS + part) * 32 + threadIdx.x % 32];
    }
};

// Where a voxel lies, counted through an image's rows.
__device__ __forceinline__ Index place(int voxel, Index plane, Index row, int size_y, int size_x,
                                       bool flat) {
    if (flat) return voxel;
    const int y = voxel / size_x, z = y / size_y;
    return z * plane + (y - z * size_y) * row + (voxel - y * size_x);
}

// in and out: words of two maps, of (image, group, z, y, x) by strides in voxels. weights: (chunk, step, part,
// lane) and (chunk, two groups of output maps, part, lane). rows: for each two maps of a lane, the factor of a sum,
// and the bias: (chunk, group of two, lane of 4) and (group, lane of 4).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pair(const unsigned* in, Index in_n, Index in_f, Index in_z, Index in_y, const Record* records,
         const uint4* __restrict__ weights, const uint4* __restrict__ later_weights,
         const float4* __restrict__ rows, const float4* __restrict__ later_rows, float most_factor,
         float most_shift, float later_factor, float later_shift, unsigned* out, Index out_n,
         Index out_f, Index out_z, Index out_y, Record* made, int size_z, int size_y, int size_x,
         int in_flat, int out_flat
#if ADDS
         ,
         const Record* other
#endif
#if NORMS
         ,
         const float* scaling, const float* slopes, float normed_largest
#endif
    ) {
    extern __shared__ uint4 shared[];
    uint4* own_later = shared + FIRST_WEIGHTS;
    float4* own_rows = reinterpret_cast<float4*>(own_later + LATER_WEIGHTS);
    float4 *own_later_rows = own_rows + FIRST_ROWS, *norm_rows = own_later_rows + LATER_ROWS;
    const int image = blockIdx.y, lane = threadIdx.x % 32;

    // Numbers of the input are brought to one scale, if groups have different ones.
#if NORMS
    const float largest = normed_largest, in_scale = scale_below(normed_largest);
#else
    const float largest = largest_of(records, IN_GROUPS), in_scale = records[0].scale;
#endif
    const float bound_between = fmaf(largest, most_factor, most_shift);
    const float between_scale = scale_below(bound_between);
    float bound = fmaf(bound_between, later_factor, later_shift);
#if ADDS
    bound += largest_of(other, OUT_GROUPS);
#endif
    const float out_scale = scale_below(bound);
    if (blockIdx.x == 0 && image == 0)
        for (int group = threadIdx.x; group < OUT_GROUPS; group += THREADS)
            made[group].scale = out_scale;

    for (int i = threadIdx.x; i < FIRST_WEIGHTS; i += THREADS) shared[i] = weights[i];
    for (int i = threadIdx.x; i < LATER_WEIGHTS; i += THREADS) own_later[i] = later_weights[i];
    const float unscaled = 1.0f / in_scale, later_unscaled = out_scale / between_scale;
    for (int i = threadIdx.x; i < FIRST_ROWS; i += THREADS) {
        const float4 row = rows[i];
        own_rows[i] = make_float4(row.x * unscaled, row.y, row.z * unscaled, row.w);
    }
    for (int i = threadIdx.x; i < LATER_ROWS; i += THREADS) {
        const float4 row = later_rows[i];
        own_later_rows[i] = make_float4(row.x * later_unscaled, row.y * out_scale,
                                        row.z * later_unscaled, row.w * out_scale);
    }
#if NORMS
    for (int i = threadIdx.x; i < NORM_ROWS; i += THREADS) {
        const float* factors = scaling + (Index)image * 2 * (8 * IN_GROUPS);
        const float* shifts = factors + 8 * IN_GROUPS;
        const float factor = in_scale / records[i / 4].scale;
        norm_rows[i] = make_float4(factors[2 * i] * factor, shifts[2 * i] * in_scale,
                                   factors[2 * i + 1] * factor, shifts[2 * i + 1] * in_scale);
    }
#endif
    __syncthreads();

    const int count = size_z * size_y * size_x, tiles = (count + 16 * TILES - 1) / (16 * TILES);
    in += image * in_n * 4 + lane % 4;
    out += image * out_n * 4 + lane % 4;
    float most = 0.0f;
    for (int tile = blockIdx.x * WARPS + threadIdx.x / 32; tile < tiles; tile += gridDim.x * WARPS) {
        const int first = tile * (16 * TILES) + lane / 4;
        Left left[TILES][STEPS];
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            // The last voxel stands for those after it.
            const int voxel = min(first + 8 * i, count - 1);
            const unsigned* from = in + place(voxel, in_z, in_y, size_y, size_x, in_flat) * 4;
#pragma unroll
            for (int group = 0; group < IN_GROUPS; ++group)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    left[i / 2][group / 2].parts[part][group % 2 * 2 + i % 2] =
                        from[(group * in_f + part * in_f / PARTS) * 4];
        }
#pragma unroll
        for (int group = 0; group < IN_GROUPS; ++group) {
#if NORMS
            const float4 row = norm_rows[group * 4 + lane % 4];
#else
            const float ratio = in_scale / records[group].scale;
            if (ratio == 1.0f) continue;
            const float4 row = make_float4(ratio, 0.0f, ratio, 0.0f);
#endif
#pragma unroll
            for (int i = 0; i < 2 * TILES; ++i) {
                Left& own = left[i / 2][group / 2];
                const int word = group % 2 * 2 + i % 2;
                const float2 two = own.numbers(word);
                own.set(word, fmaf(two.x, row.x, row.y), fmaf(two.y, row.z, row.w));
            }
        }
        float sums[TILES][OUT_TILES][4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            float between[TILES][2][4] = {};
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const Right right(shared, chunk * STEPS + step);
#pragma unroll
                for (int i = 0; i < TILES; ++i)
                    add_products(between[i][0], between[i][1], left[i][step], right.parts);
            }
            Left later[TILES];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 row = own_rows[(chunk * 2 + half) * 4 + lane % 4];
#pragma unroll
                for (int i = 0; i < TILES; ++i)
#pragma unroll
                    for (int low = 0; low < 2; ++low) {
                        const float* sum = between[i][half] + 2 * low;
                        const float one = activation(fmaf(sum[0], row.x, row.y));
                        const float two = activation(fmaf(sum[1], row.z, row.w));
                        later[i].set(2 * half + low, one * between_scale, two * between_scale);
                    }
            }
#pragma unroll
            for (int two = 0; two < OUT_TILES / 2; ++two) {
                const Right right(own_later, chunk * (OUT_TILES / 2) + two);
#pragma unroll
                for (int i = 0; i < TILES; ++i)
                    add_products(sums[i][2 * two], sums[i][2 * two + 1], later[i], right.parts);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * TILES; ++i) {
            const int voxel = first + 8 * i;
            const bool stored = voxel < count;
            unsigned* to = out + place(min(voxel, count - 1), out_z, out_y, size_y, size_x, out_flat) * 4;
#if ADDS
            unsigned held[PARTS][OUT_GROUPS];
#pragma unroll
            for (int group = 0; group < OUT_GROUPS; ++group)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    held[part][group] = to[(group * out_f + part * out_f / PARTS) * 4];
#endif
#pragma unroll
            for (int group = 0; group < OUT_GROUPS; ++group) {
                const float4 row = own_later_rows[group * 4 + lane % 4];
                const float* sum = sums[i / 2][group] + i % 2 * 2;
                float one = fmaf(sum[0], row.x, row.y), two = fmaf(sum[1], row.z, row.w);
#if ADDS
                const float factor = out_scale / other[group].scale;
                float2 before = number_of(held[0][group]);
                if (PARTS == 2) {
                    const float2 low = number_of(held[PARTS - 1][group]);
                    before.x += low.x;
                    before.y += low.y;
                }
                one = fmaf(before.x, factor, one);
                two = fmaf(before.y, factor, two);
#endif
                if (stored) {
                    most = fmaxf(most, fmaxf(fabsf(one), fabsf(two)));  // NaN is no number
                    const unsigned rounded = rounded_pair(one, two);
                    to[group * out_f * 4] = rounded;
                    if (PARTS == 2)
                        to[(group * out_f + out_f / PARTS) * 4] = rounding_of(one, two, rounded);
                }
            }
        }
    }
    // If a number is infinite, the largest of the others is below the bound.
    note_largest(&made->largest, __float_as_uint(fminf(most / out_scale, bound)));
}
