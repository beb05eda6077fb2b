// Records of packed values: for each group of 8 maps, the bits of its largest number and the scale
// that numbers are stored with.
//
// Strides and voxels are those of common/voxels.cuh: a map is a group of 8, an element its 16 bytes.

struct Record {
    unsigned largest;
    float scale;
};

// Passes the records of an input on to an output of the same groups. One block does it.
__device__ __forceinline__ void pass_on(const Record* of_input, Record* of_output, int groups) {
    if (blockIdx.x || blockIdx.y) return;
    for (int group = threadIdx.x; group < groups; group += blockDim.x)
        of_output[group] = of_input[group];
}

// Returns the largest number of some groups. All threads of a warp call it.
__device__ __forceinline__ float largest_of(const Record* records, int groups) {
    unsigned largest = 0;
    for (int group = threadIdx.x % 32; group < groups; group += 32)
        largest = max(largest, records[group].largest);
    return __uint_as_float(__reduce_max_sync(0xffffffffu, largest));
}

// The 8 numbers of a voxel.
struct Eight {
    float of[8];
};

// Returns the numbers of a group's maps, of an array that has one for each map.
__device__ __forceinline__ Eight of_eight_maps(const float* of_maps, int group) {
    const float4* fours = reinterpret_cast<const float4*>(of_maps) + 2 * group;
    const float4 low = fours[0], high = fours[1];
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

__device__ __forceinline__ Eight numbers_of(uint4 voxel, float factor) {
    const float2 a = number_of(voxel.x), b = number_of(voxel.y);
    const float2 c = number_of(voxel.z), d = number_of(voxel.w);
    return {a.x * factor, a.y * factor, b.x * factor, b.y * factor,
            c.x * factor, c.y * factor, d.x * factor, d.y * factor};
}

__device__ __forceinline__ uint4 voxel_of(const Eight& numbers, float factor) {
    const float* of = numbers.of;
    return make_uint4(rounded_pair(of[0] * factor, of[1] * factor),
                      rounded_pair(of[2] * factor, of[3] * factor),
                      rounded_pair(of[4] * factor, of[5] * factor),
                      rounded_pair(of[6] * factor, of[7] * factor));
}
