// One voxel from the same voxel of one or two inputs, with an activation. The output may be the
// memory of the first input.
//
// Macros: OPERATION: COPY, ADD, MULTIPLY, MAXIMUM, or SCALE: a factor and a shift for each map.
// `activated` comes from common/activation.py, `larger` too, the rest from common/voxels.cuh.

#define COPY 0
#define ADD 1
#define MULTIPLY 2
#define MAXIMUM 3
#define SCALE 4

// a, out: (image, map, z, y, x) by strides, which b also has along x. factors, shifts and slopes
// have a number for each map.
extern "C" __global__ void __launch_bounds__(256)
    pointwise(const float* a, Index a_n, Index a_f, Index a_z, Index a_y, const float* b, Index b_n,
              Index b_f, Index b_z, Index b_y, Index b_x, const float* __restrict__ factors,
              const float* __restrict__ shifts, const float* __restrict__ slopes, float* out, Index out_n, Index out_f,
              Index out_z, Index out_y, int images, int maps, int size_z, int size_y, int size_x) {
    const Strides of_a = {a_n, a_f, a_z, a_y}, of_out = {out_n, out_f, out_z, out_y};
    constexpr bool JOINS = OPERATION == ADD || OPERATION == MULTIPLY || OPERATION == MAXIMUM;
    struct Loaded {
        float value, other;
    };
    const auto load = [&](const Voxel& at) {
        Loaded loaded = {a[at.in(of_a)], 0.0f};
        if (JOINS)
            loaded.other =
                b[at.image * b_n + at.map * b_f + at.z * b_z + at.y * b_y + at.x * b_x];
        return loaded;
    };
    const auto store = [&](const Voxel& at, const Loaded& loaded) {
        float value = loaded.value;
        if (JOINS)
            value = OPERATION == ADD        ? value + loaded.other
                    : OPERATION == MULTIPLY ? value * loaded.other
                                            : larger(value, loaded.other);
        if (OPERATION == SCALE) value = fmaf(value, factors[at.map], shifts[at.map]);
        out[at.in(of_out)] = activated(value, slopes[at.map]);
    };
    for_each_voxel(images, maps, size_z, size_y, size_x, load, store);
}
