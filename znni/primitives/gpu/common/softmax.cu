// Applies softmax over the maps of each voxel of (image, map, voxel), in place, without overflow.

extern "C" __global__ void softmax(float *__restrict__ values, long long all_voxels,
                                   long long voxels, int maps) {
    const long long index = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (index >= all_voxels) return;
    float *value = values + index / voxels * maps * voxels + index % voxels;
    float top = value[0];
    for (int map = 1; map < maps; ++map) top = fmaxf(top, value[map * voxels]);
    float total = 0.0f;
    for (int map = 0; map < maps; ++map) {
        const float power = expf(value[map * voxels] - top);
        value[map * voxels] = power;
        total += power;
    }
    for (int map = 0; map < maps; ++map) value[map * voxels] /= total;
}
