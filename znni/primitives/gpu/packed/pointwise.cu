// One voxel from the same voxel of one or two packed inputs, with an activation. The output may be
// the memory of the first input, but its records are its own.
//
// Macros: OPERATION: ADD, MULTIPLY, MAXIMUM, or SCALE: a factor and a shift for each map. The
// output's scale comes from a bound on its numbers: of what the operation makes of the largest
// numbers, times most_factor, plus most_shift. Those of SCALE are its largest factor and shift;
// others have the activation's.

#define ADD 1
#define MULTIPLY 2
#define MAXIMUM 3
#define SCALE 4

extern "C" __global__ void __launch_bounds__(256)
    pointwise(const uint4* a, Index a_n, Index a_f, Index a_z, Index a_y,
              const Record* __restrict__ a_records, const uint4* b, Index b_n, Index b_f,
              Index b_z, Index b_y, const Record* __restrict__ b_records,
              const float* __restrict__ factors, const float* __restrict__ shifts,
              const float* __restrict__ slopes, float most_factor, float most_shift, uint4* out,
              Index out_n, Index out_f, Index out_z, Index out_y, Record* __restrict__ made,
              int images, int groups, int size_z, int size_y, int size_x) {
    const Strides of_a = {a_n, a_f, a_z, a_y}, of_b = {b_n, b_f, b_z, b_y};
    const Strides of_out = {out_n, out_f, out_z, out_y};
    float bound = largest_of(a_records, groups);
    if (OPERATION != SCALE) {
        const float other = largest_of(b_records, groups);
        bound = OPERATION == ADD        ? bound + other
                : OPERATION == MULTIPLY ? bound * other
                                        : fmaxf(bound, other);
    }
    const float scale = scale_below(fmaf(bound, most_factor, most_shift));
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (int group = threadIdx.x; group < groups; group += blockDim.x)
            made[group].scale = scale;
    struct Loaded {
        Stored first, second;
    };
    const auto load = [&](const Voxel& at) {
        Loaded loaded = {stored_at(a + at.in(of_a), a_f)};
        if (OPERATION != SCALE) loaded.second = stored_at(b + at.in(of_b), b_f);
        return loaded;
    };
    unsigned most = 0;
    const auto finish = [&](const Voxel& at, const Loaded& loaded) {
        Eight numbers = numbers_of(loaded.first, 1.0f / a_records[at.map].scale);
        Eight others = {};
        if (OPERATION != SCALE)
            others = numbers_of(loaded.second, 1.0f / b_records[at.map].scale);
        const Eight slope = of_eight_maps(slopes, at.map);
        Eight factor = {}, shift = {};
        if (OPERATION == SCALE) {
            factor = of_eight_maps(factors, at.map);
            shift = of_eight_maps(shifts, at.map);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float value = numbers.of[i];
            value = OPERATION == ADD        ? value + others.of[i]
                    : OPERATION == MULTIPLY ? value * others.of[i]
                    : OPERATION == MAXIMUM  ? larger(value, others.of[i])
                                            : fmaf(value, factor.of[i], shift.of[i]);
            value = activated(value, slope.of[i]);
            const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
            if (bits < bits_of(128)) most = max(most, bits);
            numbers.of[i] = value;
        }
        store(out + at.in(of_out), out_f, stored_of(numbers, scale));
    };
    for_each_voxel(images, groups, size_z, size_y, size_x, load, finish);
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0) atomicMax(&made->largest, most);
}
