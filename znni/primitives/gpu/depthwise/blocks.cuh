// The work of a block and of its threads, which depthwise convolutions of float32 and of packed values
// share. Sizes are macros (see geometry.py).

typedef long long Index;

constexpr int WARPS = (LANES_X * LANES_Y + 31) / 32, THREADS = 32 * WARPS;
constexpr int LIVE = (KERNEL_Z - 1) / STRIDE_Z + 1;
constexpr int TILE_X = LANES_X * ALONG, TILE_Y = LANES_Y * ROWS;  // positions

// The rows of input that a tile sees, and what a thread copies of them.
constexpr int SEEN_Y = (TILE_Y - 1) * STRIDE_Y + KERNEL_Y;
constexpr int PLANE = SEEN_Y * PITCH;
constexpr int COPIES = (PLANE + THREADS - 1) / THREADS;

// The positions at which a block begins, the phases that it makes, its map or group, and its image.
struct Place {
    int x, y, z, phase_y, phase_z, map, image;
};

// Blocks: tile along x, y, z, phase along y, z, map, image; the first one is fastest. Each makes `each`
// planes.
__device__ __forceinline__ Place place_of_block(int tiles_x, int tiles_y, int tiles_z, int each,
                                                int maps) {
    Place place;
    unsigned block = blockIdx.x;
    place.x = block % tiles_x * TILE_X;
    block /= tiles_x;
    place.y = block % tiles_y * TILE_Y;
    block /= tiles_y;
    place.z = block % tiles_z * each;
    block /= tiles_z;
    place.phase_y = block % PHASES_Y, place.phase_z = block / PHASES_Y % PHASES_Z;
    block /= PHASES_Y * PHASES_Z;
    place.map = block % maps, place.image = block / maps;
    return place;
}

// Finds what a thread copies of each plane, from the first number that the block sees. Beyond the last row
// or column any number will do, because sums of it are not stored. A few rows lie within 2^31 numbers.
__device__ __forceinline__ void find_sources(int (&from)[COPIES], const Place& place, int size_y,
                                             int size_x, int stride_y) {
    const int last_y = size_y - 1 - place.y * STRIDE_Y, last_x = size_x - 1 - place.x * STRIDE_X;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const int at = threadIdx.x + i * THREADS;
        from[i] = min(at / PITCH, last_y) * stride_y + min(at % PITCH, last_x);
    }
}

// Whether the thread has the copy with this number.
__device__ __forceinline__ bool copies(int i) {
    return (i + 1) * THREADS <= PLANE || threadIdx.x + i * THREADS < PLANE;
}
