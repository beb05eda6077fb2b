// Resamples maps by splines of orders 0 or 1. A thread computes all maps of a voxel.

typedef long long Index;

// The samples on both sides of a target sample along one axis, and their weights.
struct Neighbours {
    int left, right;
    float before, after;
};

// Computes a box of the target.
//
// values: (map, z, y, x). map, plane and row are their strides in elements. Their first sample is
// (at_z, at_y, at_x), counted as the neighbours are. along: the neighbours of all axes, one axis
// after the other. z, y and x: the places of the box's first voxel in it. out: (map, voxel).
extern "C" __global__ void __launch_bounds__(256)
    resample(const float* __restrict__ values, Index map, Index plane, Index row, int maps,
             const Neighbours* __restrict__ along, int z, int y, int x, int at_z, int at_y,
             int at_x, int size_z, int size_y, int size_x, float* __restrict__ out) {
    const Index voxels = (Index)size_z * size_y * size_x;
    for (Index voxel = blockIdx.x * 256ll + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * 256ll) {
        const Neighbours in_x = along[x + voxel % size_x];
        const Neighbours in_y = along[y + voxel / size_x % size_y];
        const Neighbours in_z = along[z + voxel / size_x / size_y];
        const Index above = (in_z.left - at_z) * plane, below = (in_z.right - at_z) * plane;
        const Index near = (in_y.left - at_y) * row, far = (in_y.right - at_y) * row;
        const Index left = in_x.left - at_x, right = in_x.right - at_x;
        const float weight_a = in_z.before * in_y.before, weight_b = in_z.before * in_y.after;
        const float weight_c = in_z.after * in_y.before, weight_d = in_z.after * in_y.after;
        const float *a = values + above + near, *b = values + above + far;
        const float *c = values + below + near, *d = values + below + far;
#pragma unroll 4
        for (int number = 0; number < maps; ++number) {
            const Index at_left = number * map + left, at_right = number * map + right;
            const float before = weight_a * a[at_left] + weight_b * b[at_left] +
                                 weight_c * c[at_left] + weight_d * d[at_left];
            const float after = weight_a * a[at_right] + weight_b * b[at_right] +
                                weight_c * c[at_right] + weight_d * d[at_right];
            out[number * voxels + voxel] = in_x.before * before + in_x.after * after;
        }
    }
}
