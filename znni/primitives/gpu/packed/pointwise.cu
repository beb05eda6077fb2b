// One voxel from the same voxel of one or two packed inputs, with an activation. The output may be
// the memory of an input, but its records are its own.
//
// Macros: OPERATION: ADD, MULTIPLY, MAXIMUM, or SCALE: a factor and a shift for each map. ADDS: whether
// SCALE then adds the second input. The output's scale comes from a bound on its numbers: of what the
// operation makes of the largest numbers, times most_factor, plus most_shift. Those of SCALE are its
// largest factor and shift; others have the activation's. TOGETHER: voxels that a thread loads before it
// stores them.
//
// A block has a group of 8 maps, whose constants stay in registers.

#define ADD 1
#define MULTIPLY 2
#define MAXIMUM 3
#define SCALE 4

constexpr bool TAKES_TWO = OPERATION != SCALE || ADDS;

// Blocks of a group follow each other: `shares` of its planes, each with `columns` blocks. The factors
// and shifts of an image's maps are `of_image` further than those of the image before it.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    pointwise(const uint4* a, Index a_n, Index a_f, Index a_z, Index a_y,
              const Record* __restrict__ a_records, const uint4* b, Index b_n, Index b_f,
              Index b_z, Index b_y, const Record* __restrict__ b_records,
              const float* __restrict__ factors, const float* __restrict__ shifts,
              const float* __restrict__ slopes, float most_factor, float most_shift, uint4* out,
              Index out_n, Index out_f, Index out_z, Index out_y, Record* __restrict__ made,
              int of_image, int columns, int shares, int groups, int size_z, int size_y,
              int size_x) {
    const unsigned of_group = blockIdx.x / columns, share = of_group % shares;
    const int image = of_group / shares / groups, group = of_group / shares % groups;
    const unsigned cell = blockIdx.x % columns * THREADS + threadIdx.x;
    const int runs = (size_z + TOGETHER - 1) / TOGETHER;
    const int each = (runs + shares - 1) / shares * TOGETHER;
    const int first = share * each, last = min(size_z, first + each);
    float bound = largest_of(a_records, groups);
    if (OPERATION != SCALE) {
        const float other = largest_of(b_records, groups);
        bound = OPERATION == ADD        ? bound + other
                : OPERATION == MULTIPLY ? bound * other
                                        : fmaxf(bound, other);
    }
    bound = fmaf(bound, most_factor, most_shift);
    if (ADDS) bound += largest_of(b_records, groups);
    const float scale = scale_below(bound);
    if (blockIdx.x == 0)
        for (int other = threadIdx.x; other < groups; other += THREADS) made[other].scale = scale;
    float most = 0.0f;
    if (cell < unsigned(size_y) * size_x) {
        float unscaled = 1.0f / a_records[group].scale, other_unscaled = 0.0f;
        const Eight slope = of_eight_maps(slopes, group);
        Eight factor = {}, shift = {};
        if (OPERATION == SCALE) {
            factor = of_eight_maps(factors + (Index)image * of_image, group);
            shift = of_eight_maps(shifts + (Index)image * of_image, group);
#pragma unroll
            for (int map = 0; map < 8; ++map) factor.of[map] *= unscaled;
            unscaled = 1.0f;
        }
        if (TAKES_TWO) other_unscaled = 1.0f / b_records[group].scale;
        const int y = cell / size_x, x = cell % size_x;
        const uint4* of_a = a + image * a_n + group * a_f + y * a_y + x;
        const uint4* of_b = b + image * b_n + group * b_f + y * b_y + x;
        uint4* of_out = out + image * out_n + group * out_f + y * out_y + x;
        for (int start = first; start < last; start += TOGETHER) {
            Stored loaded[TOGETHER], others[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                // The last voxel stands for those after it: no load waits for a branch.
                const int z = min(start + i, last - 1);
                loaded[i] = stored_at(of_a + z * a_z, a_f);
                if (TAKES_TWO) others[i] = stored_at(of_b + z * b_z, b_f);
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                if (start + i >= last) break;
                Eight numbers = numbers_of(loaded[i], unscaled), other = {};
                if (TAKES_TWO) other = numbers_of(others[i], other_unscaled);
#pragma unroll
                for (int map = 0; map < 8; ++map) {
                    float value = numbers.of[map];
                    value = OPERATION == ADD        ? value + other.of[map]
                            : OPERATION == MULTIPLY ? value * other.of[map]
                            : OPERATION == MAXIMUM  ? larger(value, other.of[map])
                                                    : fmaf(value, factor.of[map], shift.of[map]);
                    if (ADDS) value += other.of[map];
                    value = activated(value, slope.of[map]);
                    most = fmaxf(most, fabsf(value));  // NaN is no number
                    numbers.of[map] = value;
                }
                store(of_out + (start + i) * out_z, out_f, stored_of(numbers, scale));
            }
        }
    }
    // If a number is infinite, the largest of the others is below the bound.
    note_largest(&made->largest, __float_as_uint(fminf(most, bound)));
}
