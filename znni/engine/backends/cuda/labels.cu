// Labels of the maps of a block: of the largest map, of each map above a threshold, or of the last
// such map.
//
// Macros: Label: the type of a label; HAS_HEAD: whether the maps are linear functions of the values.

constexpr int TOGETHER = 8;  // maps that are computed together from each value

__device__ __forceinline__ bool is_nan(float value) { return value != value; }

// Calls a function with the number and the value of each map at a voxel.
// values: (feature, voxel); weights: (map, feature).
template <class Function>
__device__ __forceinline__ void for_each_map(const float* __restrict__ values, long long voxels,
                                             int features, const float* __restrict__ weights,
                                             const float* __restrict__ biases, int maps,
                                             long long voxel, const Function& function) {
    if (!HAS_HEAD) {
        for (int map = 0; map < maps; ++map) function(map, values[map * voxels + voxel]);
        return;
    }
    for (int first = 0; first < maps; first += TOGETHER) {
        float sums[TOGETHER];
        const float* of_map[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const int map = min(first + i, maps - 1);
            sums[i] = biases[map];
            of_map[i] = weights + (long long)map * features;
        }
        for (int feature = 0; feature < features; ++feature) {
            const float value = values[feature * voxels + voxel];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) sums[i] = fmaf(value, of_map[i][feature], sums[i]);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
            if (first + i < maps) function(first + i, sums[i]);
    }
}

// Writes the label of the largest map of each voxel. Of equal maps the first counts; NaN is largest.
extern "C" __global__ void __launch_bounds__(256)
    label_largest(const float* __restrict__ values, long long voxels, int features,
                  const float* __restrict__ weights, const float* __restrict__ biases, int maps,
                  const Label* __restrict__ labels, Label* __restrict__ out) {
    for (long long voxel = blockIdx.x * 256ll + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * 256ll) {
        int number = 0;
        float largest = 0.0f;
        for_each_map(values, voxels, features, weights, biases, maps, voxel,
                     [&](int map, float value) {
                         if (map == 0 || value > largest || (is_nan(value) && !is_nan(largest))) {
                             number = map;
                             largest = value;
                         }
                     });
        out[voxel] = labels[number];
    }
}

// Writes the label of the last map that is above the threshold, or 0 if none is.
extern "C" __global__ void __launch_bounds__(256)
    label_last(const float* __restrict__ values, long long voxels, int features,
               const float* __restrict__ weights, const float* __restrict__ biases, int maps,
               float threshold, const Label* __restrict__ labels, Label* __restrict__ out) {
    for (long long voxel = blockIdx.x * 256ll + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * 256ll) {
        Label label = 0;
        for_each_map(values, voxels, features, weights, biases, maps, voxel,
                     [&](int map, float value) {
                         if (value > threshold) label = labels[map];
                     });
        out[voxel] = label;
    }
}

// Writes 1 where a map is above the threshold, and else 0. out: (map, voxel).
extern "C" __global__ void __launch_bounds__(256)
    label_above(const float* __restrict__ values, long long voxels, int features,
                const float* __restrict__ weights, const float* __restrict__ biases, int maps,
                float threshold, Label* __restrict__ out) {
    for (long long voxel = blockIdx.x * 256ll + threadIdx.x; voxel < voxels;
         voxel += gridDim.x * 256ll)
        for_each_map(values, voxels, features, weights, biases, maps, voxel,
                     [&](int map, float value) { out[map * voxels + voxel] = value > threshold; });
}
