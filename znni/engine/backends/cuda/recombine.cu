// Writes fragments into a dense output, converted to the type that is stored.
//
// Constants: STORED_FLOAT32, STORED_FLOAT16 or STORED_UINT8: the type of the output.

#if defined(STORED_FLOAT16)
#include <cuda_fp16.h>
using Stored = __half;
// Infinite beyond 65504.
__device__ __forceinline__ Stored stored(float value) { return __float2half_rn(value); }
#elif defined(STORED_UINT8)
using Stored = unsigned char;
// 0..1 as 0..255, and what lies outside at the ends.
__device__ __forceinline__ Stored stored(float value) {
    return (Stored)fminf(fmaxf(rintf(value * 255.0f), 0.0f), 255.0f);
}
#else
using Stored = float;
__device__ __forceinline__ Stored stored(float value) { return value; }
#endif

// fragments: (n, maps, z, y, x) by strides, the last axis contiguous; starts: where in a map each of
// them begins. dense: (maps, ...) with `volume` voxels a map, where a fragment's voxels are step_z,
// step_y and step_x apart.
extern "C" __global__ void recombine(const float* __restrict__ fragments,
                                     long long stride_n, long long stride_f, long long stride_z,
                                     long long stride_y, const long long* __restrict__ starts,
                                     Stored* __restrict__ dense, long long voxels, int maps, int z,
                                     int y, int x, long long volume, long long step_z, long long step_y,
                                     long long step_x) {
    const long long grid = (long long)gridDim.x * blockDim.x;
    for (long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x; index < voxels;
         index += grid) {
        const int at_x = index % x;
        long long rest = index / x;
        const int at_y = rest % y;
        rest /= y;
        const int at_z = rest % z;
        rest /= z;
        const int map = rest % maps;
        rest /= maps;
        dense[starts[rest] + map * volume + at_z * step_z + at_y * step_y + at_x * step_x] =
            stored(fragments[rest * stride_n + map * stride_f + at_z * stride_z + at_y * stride_y +
                             at_x]);
    }
}
