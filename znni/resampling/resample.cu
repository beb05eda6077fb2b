// Maps with other voxels, and the labels of the largest of them. Splines have orders 0 or 1.
//
// Macros: Label: the type of a label. A thread computes all maps of a voxel.

typedef long long Index;

// The samples on both sides of a target sample along one axis, and their weights.
struct Neighbours {
    int left, right;
    float before, after;
};

// A box of the target, and the values (map, z, y, x) it is computed from.
struct Grid {
    const Neighbours *z, *y, *x;  // of the box's first voxel
    Index map, plane, row;        // strides of the values in elements
    int at_z, at_y, at_x;         // the source voxel of the first value
    int size_z, size_y, size_x;   // of the box
};

// Calls a function with the number and the value of each map, for each voxel of the thread, and
// then another one.
template <class Function, class Finish>
__device__ __forceinline__ void for_each_voxel(const float* __restrict__ values, int maps,
                                               const Grid& grid, const Function& function,
                                               const Finish& finish) {
    const Index voxels = (Index)grid.size_z * grid.size_y * grid.size_x;
    for (Index voxel = blockIdx.x * 256ll + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * 256ll) {
        const Neighbours x = grid.x[voxel % grid.size_x];
        const Neighbours y = grid.y[voxel / grid.size_x % grid.size_y];
        const Neighbours z = grid.z[voxel / grid.size_x / grid.size_y];
        const Index above = (z.left - grid.at_z) * grid.plane;
        const Index below = (z.right - grid.at_z) * grid.plane;
        const Index near = (y.left - grid.at_y) * grid.row;
        const Index far = (y.right - grid.at_y) * grid.row;
        const Index left = x.left - grid.at_x, right = x.right - grid.at_x;
        const float weight_a = z.before * y.before, weight_b = z.before * y.after;
        const float weight_c = z.after * y.before, weight_d = z.after * y.after;
        const float *a = values + above + near, *b = values + above + far;
        const float *c = values + below + near, *d = values + below + far;
#pragma unroll 4
        for (int map = 0; map < maps; ++map) {
            const Index at_left = map * grid.map + left, at_right = map * grid.map + right;
            const float before = weight_a * a[at_left] + weight_b * b[at_left] +
                                 weight_c * c[at_left] + weight_d * d[at_left];
            const float after = weight_a * a[at_right] + weight_b * b[at_right] +
                                weight_c * c[at_right] + weight_d * d[at_right];
            function(voxel, voxels, map, x.before * before + x.after * after);
        }
        finish(voxel);
    }
}

// out: (map, voxel).
extern "C" __global__ void __launch_bounds__(256)
    resample(const float* __restrict__ values, Index map, Index plane, Index row, int maps,
             const Neighbours* __restrict__ along, int z, int y, int x, int at_z, int at_y,
             int at_x, int size_z, int size_y, int size_x, float* __restrict__ out) {
    const Grid grid = {along + z, along + y, along + x, map,    plane,  row,
                       at_z,      at_y,      at_x,      size_z, size_y, size_x};
    for_each_voxel(
        values, maps, grid,
        [&](Index voxel, Index voxels, int map, float value) {
            out[map * voxels + voxel] = value;
        },
        [](Index) {});
}

// Writes the label of the largest map. Of equal maps the first counts; NaN is largest.
extern "C" __global__ void __launch_bounds__(256)
    label_largest(const float* __restrict__ values, Index map, Index plane, Index row, int maps,
                  const Neighbours* __restrict__ along, int z, int y, int x, int at_z, int at_y,
                  int at_x, int size_z, int size_y, int size_x, const Label* __restrict__ labels,
                  Label* __restrict__ out) {
    const Grid grid = {along + z, along + y, along + x, map,    plane,  row,
                       at_z,      at_y,      at_x,      size_z, size_y, size_x};
    int number = 0;
    float largest = 0.0f;
    for_each_voxel(
        values, maps, grid,
        [&](Index, Index, int map, float value) {
            const bool is_larger = !(value <= largest) && largest == largest;
            if (map == 0 || is_larger) {
                number = map;
                largest = value;
            }
        },
        [&](Index voxel) { out[voxel] = labels[number]; });
}
