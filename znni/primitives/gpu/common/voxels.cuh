// Loops over the voxels of an output: a thread has one cell of all planes, or of some that follow
// each other.
//
// Cells of a plane are numbered as they lie in memory, so neighbouring threads read and write next
// to each other. Planes are counted through images, maps and z, with z fastest.

typedef long long Index;

// Strides of an array (image, map, z, y, x) in elements. Its last axis is contiguous.
struct Strides {
    Index n, f, z, y;
};

// A voxel of an output.
struct Voxel {
    int image, map, z, y, x;

    __device__ __forceinline__ Index in(const Strides& strides) const {
        return image * strides.n + map * strides.f + z * strides.z + y * strides.y + x;
    }
};

// Calls a function with each voxel of the thread.
template <class Function>
__device__ __forceinline__ void for_each_voxel(int images, int maps, int out_z, int out_y,
                                               int out_x, const Function& function) {
    const unsigned cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= unsigned(out_y) * out_x) return;
    const unsigned planes = unsigned(images) * maps * out_z;
    const unsigned share = (planes + gridDim.y - 1) / gridDim.y;
    const unsigned first = blockIdx.y * share, last = min(planes, first + share);
    Voxel voxel;
    voxel.y = cell / out_x;
    voxel.x = cell % out_x;
    voxel.z = first % out_z;
    voxel.map = first / out_z % maps;
    voxel.image = first / out_z / maps;
#pragma unroll 4
    for (unsigned plane = first; plane < last; ++plane) {
        function(voxel);
        if (++voxel.z < out_z) continue;  // divisions would take longer than the memory
        voxel.z = 0;
        if (++voxel.map < maps) continue;
        voxel.map = 0;
        ++voxel.image;
    }
}
