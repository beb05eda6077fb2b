// Maxima or averages of windows of packed values. The scale stays: no result is larger than the
// largest number.
//
// Macros: WINDOW_Z, _Y, _X; STRIDE_Z, _Y, _X; DILATION_Z, _Y, _X; IS_MAX.

#if PARTS == 1
typedef Stored Most;

// Returns the larger of two numbers, or NaN if one of them is NaN, for both of a word.
__device__ __forceinline__ unsigned larger_word(unsigned a, unsigned b) {
    unsigned result;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

__device__ __forceinline__ Most least() {
    constexpr unsigned word = 0xfc00fc00u;  // minus infinity
    return {make_uint4(word, word, word, word)};
}

__device__ __forceinline__ Most larger_of(const Most& most, const Stored& stored) {
    const uint4 a = most.parts[0], b = stored.parts[0];
    return {make_uint4(larger_word(a.x, b.x), larger_word(a.y, b.y), larger_word(a.z, b.z),
                       larger_word(a.w, b.w))};
}

__device__ __forceinline__ Stored stored_of(const Most& most) { return most; }
#else
typedef Eight Most;

__device__ __forceinline__ Most least() {
    Most most;
#pragma unroll
    for (int map = 0; map < 8; ++map) most.of[map] = __uint_as_float(0xff800000u);
    return most;
}

__device__ __forceinline__ Most larger_of(Most most, const Stored& stored) {
    const Eight numbers = numbers_of(stored, 1.0f);
#pragma unroll
    for (int map = 0; map < 8; ++map) most.of[map] = larger(most.of[map], numbers.of[map]);
    return most;
}

__device__ __forceinline__ Stored stored_of(const Most& most) { return stored_of(most, 1.0f); }
#endif

// A maximum ignores samples outside of [start, stop); an average counts all of its window.
extern "C" __global__ void __launch_bounds__(256)
    pool(const uint4* __restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
         const Record* records, uint4* __restrict__ out, Index out_n, Index out_f, Index out_z,
         Index out_y, Record* made, int start_z, int start_y, int start_x, int stop_z, int stop_y,
         int stop_x, int images, int groups, int size_z, int size_y, int size_x) {
    const Strides of_in = {in_n, in_f, in_z, in_y}, of_out = {out_n, out_f, out_z, out_y};
    pass_on(records, made, groups);
    for_each_voxel(images, groups, size_z, size_y, size_x, [&](const Voxel& at) {
        const Voxel first = {at.image, at.map, at.z * STRIDE_Z, at.y * STRIDE_Y, at.x * STRIDE_X};
        const uint4* corner = in + first.in(of_in);
        Most most = least();
        Eight sums = {};
#pragma unroll 1
        for (int z = 0; z < WINDOW_Z * DILATION_Z; z += DILATION_Z) {
#pragma unroll
            for (int y = 0; y < WINDOW_Y * DILATION_Y; y += DILATION_Y) {
                const uint4* row = corner + z * in_z + y * in_y;
                const bool in_row = first.z + z >= start_z && first.z + z < stop_z &&
                                    first.y + y >= start_y && first.y + y < stop_y;
#pragma unroll
                for (int x = 0; x < WINDOW_X * DILATION_X; x += DILATION_X) {
                    if (IS_MAX) {
                        if (in_row && first.x + x >= start_x && first.x + x < stop_x)
                            most = larger_of(most, stored_at(row + x, in_f));
                    } else {
                        const Eight numbers = numbers_of(stored_at(row + x, in_f), 1.0f);
#pragma unroll
                        for (int map = 0; map < 8; ++map) sums.of[map] += numbers.of[map];
                    }
                }
            }
        }
        store(out + at.in(of_out), out_f,
              IS_MAX ? stored_of(most) : stored_of(sums, 1.0f / (WINDOW_Z * WINDOW_Y * WINDOW_X)));
    });
}
