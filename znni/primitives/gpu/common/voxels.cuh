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

// The planes of a thread's cell, counted through images, maps and z.
struct Planes {
    unsigned first, last;
    Voxel voxel;  // of the first one

    __device__ __forceinline__ Planes(unsigned cell, int images, int maps, int out_z, int out_x) {
        const unsigned planes = unsigned(images) * maps * out_z;
        const unsigned share = (planes + gridDim.y - 1) / gridDim.y;
        first = blockIdx.y * share;
        last = min(planes, first + share);
        voxel.y = cell / out_x;
        voxel.x = cell % out_x;
        voxel.z = first % out_z;
        voxel.map = first / out_z % maps;
        voxel.image = first / out_z / maps;
    }
};

// Calls a function with each voxel of the thread.
template <class Function>
__device__ __forceinline__ void for_each_voxel(int images, int maps, int out_z, int out_y,
                                               int out_x, const Function& function) {
    const unsigned cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= unsigned(out_y) * out_x) return;
    const Planes planes(cell, images, maps, out_z, out_x);
    Voxel voxel = planes.voxel;
#pragma unroll 4
    for (unsigned plane = planes.first; plane < planes.last; ++plane) {
        function(voxel);
        if (++voxel.z < out_z) continue;  // divisions would take longer than the memory
        voxel.z = 0;
        if (++voxel.map < maps) continue;
        voxel.map = 0;
        ++voxel.image;
    }
}

// Loads each voxel of the thread by one function, and stores it by another, which takes what was
// loaded. An output may be the memory of an input, so a compiler keeps loads behind earlier stores.
// Here the loads of some voxels come before their stores, and memory is busy.
template <class Load, class Store>
__device__ __forceinline__ void for_each_voxel(int images, int maps, int out_z, int out_y,
                                               int out_x, const Load& load, const Store& store) {
    const unsigned cell = blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= unsigned(out_y) * out_x) return;
    const Planes planes(cell, images, maps, out_z, out_x);
    constexpr int TOGETHER_LOADED = 4;
    Voxel voxel = planes.voxel;
    for (unsigned plane = planes.first; plane < planes.last; plane += TOGETHER_LOADED) {
        Voxel at[TOGETHER_LOADED];
        decltype(load(voxel)) loaded[TOGETHER_LOADED];
#pragma unroll
        for (int i = 0; i < TOGETHER_LOADED; ++i) {
            at[i] = voxel;
            loaded[i] = load(voxel);
            // The last voxel is loaded again in place of those after it: no load waits for a branch.
            const bool goes_on = plane + i + 1 < planes.last;
            const bool next_map = goes_on && voxel.z + 1 == out_z;
            const bool next_image = next_map && voxel.map + 1 == maps;
            voxel.z = next_map ? 0 : voxel.z + goes_on;
            voxel.map = next_image ? 0 : voxel.map + next_map;
            voxel.image += next_image;
        }
#pragma unroll
        for (int i = 0; i < TOGETHER_LOADED; ++i)
            if (plane + i < planes.last) store(at[i], loaded[i]);
    }
}
