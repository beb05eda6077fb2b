// Between the arrays of this library and those of cuDNN: (image, map, z, y, x) of float32 by
// strides, and NUMBERs with the maps outermost or, where MAPS_LAST, innermost.
//
// A block moves SIDE voxels of SIDE maps through shared memory, so that both sides are read and
// written along what lies together there.

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

struct Strided {
    Index n, f, z, y;
    int size_y, size_x;

    __device__ Index at(int image, int map, Index voxel) const {
        const Index row = voxel / size_x;
        return image * n + map * f + row / size_y * z + row % size_y * y + voxel % size_x;
    }
};

struct Packed {
    int maps;
    Index voxels;

    __device__ Index at(int image, int map, Index voxel) const {
        return MAPS_LAST ? (image * voxels + voxel) * maps + map
                         : (image * Index(maps) + map) * voxels + voxel;
    }
};

// A block's first voxel and map, and its image.
struct Place {
    Index voxel;
    int image, map;

    __device__ explicit Place(Index voxels) {
        const Index tiles = (voxels + SIDE - 1) / SIDE;
        image = static_cast<int>(blockIdx.x / tiles);
        voxel = blockIdx.x % tiles * SIDE;
        map = blockIdx.y * SIDE;
    }
};

extern "C" __global__ void __launch_bounds__(SIDE *ROWS)
    pack(const float *__restrict__ in, Index stride_n, Index stride_f, Index stride_z,
         Index stride_y, NUMBER *__restrict__ out, int maps, Index voxels, int size_y,
         int size_x) {
    __shared__ float tile[SIDE][SIDE + 1];
    const Strided from{stride_n, stride_f, stride_z, stride_y, size_y, size_x};
    const Packed to{maps, voxels};
    const Place place(voxels);
    const Index voxel = place.voxel + threadIdx.x;
    for (int i = threadIdx.y; i < SIDE; i += ROWS)
        if (voxel < voxels && place.map + i < maps) {
            const float value = in[from.at(place.image, place.map + i, voxel)];
            if (MAPS_LAST)
                tile[i][threadIdx.x] = value;
            else
                out[to.at(place.image, place.map + i, voxel)] = NUMBER(value);
        }
    if (!MAPS_LAST) return;
    __syncthreads();
    const int map = place.map + threadIdx.x;
    for (int i = threadIdx.y; i < SIDE; i += ROWS)
        if (place.voxel + i < voxels && map < maps)
            out[to.at(place.image, map, place.voxel + i)] = NUMBER(tile[threadIdx.x][i]);
}

extern "C" __global__ void __launch_bounds__(SIDE *ROWS)
    unpack(const NUMBER *__restrict__ in, const float *__restrict__ bias, float *__restrict__ out,
           Index stride_n, Index stride_f, Index stride_z, Index stride_y, int maps, Index voxels,
           int size_y, int size_x) {
    __shared__ float tile[SIDE][SIDE + 1];
    const Strided to{stride_n, stride_f, stride_z, stride_y, size_y, size_x};
    const Packed from{maps, voxels};
    const Place place(voxels);
    if (MAPS_LAST) {
        const int map = place.map + threadIdx.x;
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            if (place.voxel + i < voxels && map < maps)
                tile[threadIdx.x][i] =
                    to_float(in[from.at(place.image, map, place.voxel + i)]);
        __syncthreads();
    }
    const Index voxel = place.voxel + threadIdx.x;
    for (int i = threadIdx.y; i < SIDE; i += ROWS)
        if (voxel < voxels && place.map + i < maps) {
            const int map = place.map + i;
            const float value = MAPS_LAST ? tile[i][threadIdx.x]
                                          : to_float(in[from.at(place.image, map, voxel)]);
            out[to.at(place.image, map, voxel)] = activation(value + bias[map]);
        }
}

// Numbers between -1 and 1, no two alike nearby: engines are timed on what is not all zeros.
extern "C" __global__ void fill(NUMBER *__restrict__ numbers, Index count) {
    const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
    if (i >= count) return;
    unsigned bits = static_cast<unsigned>(i) * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    numbers[i] = NUMBER(static_cast<int>(bits ^ bits >> 13) * 0x1p-31f);
}
