// Records of packed values: for each group of 8 maps, the bits of its largest number and the scale
// that numbers are stored with.
//
// Strides and voxels are those of common/voxels.cuh: a map is a group of 8, an element its 16 bytes.
// If a number has two PARTS, the low ones of a group lie half of the way to the next group.

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

__device__ __forceinline__ Eight of_two_vectors(float4 low, float4 high) {
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// Returns the numbers of a group's maps, of an array that has one for each map.
__device__ __forceinline__ Eight of_eight_maps(const float* of_maps, int group) {
    const float4* fours = reinterpret_cast<const float4*>(of_maps) + 2 * group;
    return of_two_vectors(fours[0], fours[1]);
}

// A voxel of a group as it is stored, part after part.
struct Stored {
    uint4 parts[PARTS];
};

__device__ __forceinline__ Stored stored_at(const uint4* voxel, Index group_stride) {
    Stored stored;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) stored.parts[part] = voxel[part * group_stride / PARTS];
    return stored;
}

__device__ __forceinline__ void store(uint4* voxel, Index group_stride, const Stored& stored) {
#pragma unroll
    for (int part = 0; part < PARTS; ++part) voxel[part * group_stride / PARTS] = stored.parts[part];
}

__device__ __forceinline__ Eight numbers_of(const Stored& stored, float factor) {
    Eight numbers = {};
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const uint4& voxel = stored.parts[part];
        const unsigned words[4] = {voxel.x, voxel.y, voxel.z, voxel.w};
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            const float2 two = number_of(words[word]);
            numbers.of[2 * word] = part ? numbers.of[2 * word] + two.x : two.x;
            numbers.of[2 * word + 1] = part ? numbers.of[2 * word + 1] + two.y : two.y;
        }
    }
#pragma unroll
    for (int map = 0; map < 8; ++map) numbers.of[map] *= factor;
    return numbers;
}

__device__ __forceinline__ Stored stored_of(const Eight& numbers, float factor) {
    unsigned words[PARTS][4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
        const float low = numbers.of[2 * word] * factor, high = numbers.of[2 * word + 1] * factor;
        words[0][word] = rounded_pair(low, high);
        if (PARTS == 2) words[PARTS - 1][word] = rounding_of(low, high, words[0][word]);
    }
    Stored stored;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        stored.parts[part] =
            make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
    return stored;
}
