// Copies between our arrays, float32 (image, map, z, y, x) by strides, and those of cuDNN, NUMBERs
// with the maps outermost or, if MAPS_LAST, innermost.
//
// A block moves SIDE voxels of SIDE maps through shared memory, so that it reads and writes both
// arrays along the axis that is contiguous there.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long Index;

constexpr int SIDE = 32;
constexpr int ROWS = 8;

__device__ __forceinline__ float to_float(float number) { return number; }
__device__ __forceinline__ float to_float(__half number) { return __half2float(number); }
__device__ __forceinline__ float to_float(__nv_bfloat16 number) {
    return __bfloat162float(number);
}

// The place of a block of threads: its image, its first voxel, and each thread's voxel in memory.
struct Place {
    int image, voxel;

    __device__ explicit Place(int voxels) {
        const unsigned tiles = (voxels + SIDE - 1u) / SIDE;
        image = blockIdx.x / tiles;
        voxel = blockIdx.x % tiles * SIDE;
    }

    // Returns the offset of the thread's voxel in map 0 of a strided array.
    __device__ Index strided(Index stride_n, Index stride_z, Index stride_y, int size_y,
                             int size_x) const {
        const unsigned mine = voxel + threadIdx.x, row = mine / size_x;
        return image * stride_n + row / size_y * stride_z + row % size_y * stride_y +
               mine % size_x;
    }
};

extern "C" __global__ void __launch_bounds__(SIDE *ROWS)
    pack(const float *__restrict__ in, Index stride_n, Index stride_f, Index stride_z,
         Index stride_y, NUMBER *__restrict__ out, int maps, int voxels, int size_y, int size_x) {
    __shared__ float tile[SIDE][SIDE + 1];
    const Place place(voxels);
    const bool present = place.voxel + threadIdx.x < voxels;
    in += place.strided(stride_n, stride_z, stride_y, size_y, size_x);
    out += Index(place.image) * maps * voxels;
    for (int first = 0; first < maps; first += SIDE) {
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            if (present && first + i < maps) {
                const float value = in[(first + i) * stride_f];
                if (MAPS_LAST)
                    tile[i][threadIdx.x] = value;
                else
                    out[(first + i) * Index(voxels) + place.voxel + threadIdx.x] = NUMBER(value);
            }
        if (!MAPS_LAST) continue;
        __syncthreads();
        const int map = first + threadIdx.x;
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            if (place.voxel + i < voxels && map < maps)
                out[(place.voxel + i) * Index(maps) + map] = NUMBER(tile[threadIdx.x][i]);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(SIDE *ROWS)
    unpack(const NUMBER *__restrict__ in, const float *__restrict__ bias, float *__restrict__ out,
           Index stride_n, Index stride_f, Index stride_z, Index stride_y, int maps, int voxels,
           int size_y, int size_x) {
    __shared__ float tile[SIDE][SIDE + 1];
    const Place place(voxels);
    const bool present = place.voxel + threadIdx.x < voxels;
    in += Index(place.image) * maps * voxels;
    out += place.strided(stride_n, stride_z, stride_y, size_y, size_x);
    for (int first = 0; first < maps; first += SIDE) {
        if (MAPS_LAST) {
            const int map = first + threadIdx.x;
            for (int i = threadIdx.y; i < SIDE; i += ROWS)
                if (place.voxel + i < voxels && map < maps)
                    tile[threadIdx.x][i] = to_float(in[(place.voxel + i) * Index(maps) + map]);
            __syncthreads();
        }
#pragma unroll 2  // some activations need many registers
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            if (present && first + i < maps) {
                const int map = first + i;
                const float value =
                    MAPS_LAST ? tile[i][threadIdx.x]
                              : to_float(in[map * Index(voxels) + place.voxel + threadIdx.x]);
                out[map * stride_f] = activation(value + bias[map]);
            }
        if (MAPS_LAST) __syncthreads();
    }
}

// Writes numbers between -1 and 1, different from their neighbours. Engines are timed on these, as
// zeros could be faster.
extern "C" __global__ void fill(NUMBER *__restrict__ numbers, Index count) {
    const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
    if (i >= count) return;
    unsigned bits = static_cast<unsigned>(i) * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    numbers[i] = NUMBER(static_cast<int>(bits ^ bits >> 13) * 0x1p-31f);
}
