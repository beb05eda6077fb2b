// Stored integers to the input of a network.
//
// Macros: Unsigned and Signed: the types of stored values, of the same size.

// The numbers of a map: what they mean depends on whether it is normalized.
struct Numbers {
    float low, high;  // to which values are clipped; infinite: they are not
    float mean, std;  // of (value - mean) / std; or the scale and the offset of value * scale + offset
};

// stored and into: (maps, z, y, x). Voxels outside of the box from (low_z, low_y, low_x) to
// (high_z, high_y, high_x) become 0. A warp takes a row at a time.
extern "C" __global__ void __launch_bounds__(256)
    scale(const Unsigned* __restrict__ stored, int is_signed, const Numbers* __restrict__ numbers,
          int normalizes, float* __restrict__ into, int maps, int z, int y, int x, int low_z,
          int low_y, int low_x, int high_z, int high_y, int high_x) {
    const long long rows = (long long)maps * z * y;
    const long long step = (long long)gridDim.x * blockDim.y;
    for (long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += step) {
        const int at_y = row % y;
        const int at_z = row / y % z;
        const Numbers number = numbers[row / y / z];
        const bool known = at_z >= low_z && at_z < high_z && at_y >= low_y && at_y < high_y;
        for (int at = threadIdx.x; at < x; at += 32) {
            const Unsigned found = stored[row * x + at];
            float value = is_signed ? (float)(Signed)found : (float)found;
            if (normalizes) {
                value = fminf(fmaxf(value, number.low), number.high);
                value = (value - number.mean) / number.std;
            } else {  // in two steps, as the host rounds
                value = __fadd_rn(__fmul_rn(value, number.mean), number.std);
            }
            into[row * x + at] = known && at >= low_x && at < high_x ? value : 0.0f;
        }
    }
}
