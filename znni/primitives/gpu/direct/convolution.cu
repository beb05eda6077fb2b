// Direct convolution from shared memory, pooled plainly over a window as it is stored.
//
// A block computes the outputs of one tile of voxels for one or more groups of MAPS output maps. A
// warp computes one plane of them. A thread has ROWS pooled voxels that follow each other along y.
// It sums all WINDOW_Z x WINDOW_Y x WINDOW_X voxels of each for MAPS maps in registers. Along y it
// keeps the column of inputs that TAPS_Y taps see, so that it reads each from shared memory once
// for all of them. All lanes read weights at the same address.
//
// The work of a block is a sequence of stages: TAPS_Z planes of one input map's weights, and the
// input that they see. cp.async brings a stage while the previous one is computed. If all of a
// block's input is one stage, it is brought once for all groups.
//
// Sizes are macros (see geometry.py). `activation` and `larger` come from common/activation.py.
// Indices into device memory have 64 bits.

typedef long long Index;

constexpr int LANES = 32;
constexpr int LANES_Y = LANES / LANES_X;
constexpr int THREADS = WARPS_Z * WARPS_Y * WARPS_X * LANES;
constexpr int THREAD_Y = ROWS * WINDOW_Y;
constexpr int COLUMN = THREAD_Y + TAPS_Y - 1;

// The input that a stage sees. Lanes read every WINDOW_X-th voxel, so x is kept as (x % WINDOW_X,
// x / WINDOW_X): neighbouring lanes read neighbouring words.
constexpr int TILE_Z = WARPS_Z * WINDOW_Z + TAPS_Z - 1;
constexpr int TILE_Y = WARPS_Y * LANES_Y * THREAD_Y + KERNEL_Y - 1;
constexpr int TILE_X = WARPS_X * LANES_X * WINDOW_X + KERNEL_X - 1;
constexpr int PHASE = (TILE_X + WINDOW_X - 1) / WINDOW_X;
constexpr int TILE = TILE_Z * TILE_Y * PITCH;
constexpr int TILE_FLOATS = (TILE + 3) / 4 * 4;  // the weights after it begin at 16 bytes
static_assert(PITCH >= PHASE * WINDOW_X, "rows of the tile overlap");

typedef float Sums[WINDOW_Z][THREAD_Y][WINDOW_X][MAPS];

constexpr int MAPS_PITCH = (MAPS + 3) / 4 * 4;
constexpr int STAGE_WEIGHTS = TAPS_Z * KERNEL_X * KERNEL_Y * MAPS_PITCH;

// Brings the part of the input, from `source` on, that a stage sees. Beyond the last plane, row or
// column any value will do, because voxels that see it are not stored.
__device__ __forceinline__ void bring_tile(float *tile, const float *source, Index stride_z,
                                           Index stride_y, int last_z, int last_y, int last_x) {
    // Threads side by side bring a row. The last voxels of all rows follow in a pass of their own.
    constexpr int REST_X = KERNEL_X - 1, MAIN_X = TILE_X - REST_X;
    constexpr int STEP_X = MAIN_X % THREADS == 0 ? THREADS : MAIN_X % 64 == 0 ? 64
                           : MAIN_X % 32 == 0 ? 32 : 16;
    constexpr int STEP_Y = THREADS / STEP_X;
    const int thread_x = threadIdx.x % STEP_X, thread_y = threadIdx.x / STEP_X;
#pragma unroll
    for (int i = 0; i < MAIN_X; i += STEP_X) {
        const int x = i + thread_x;
        const float *column = source + min(x, last_x);
        float *target = tile + thread_y * PITCH + x % WINDOW_X * PHASE + x / WINDOW_X;
#pragma unroll 1
        for (int z = 0; z < TILE_Z; ++z) {
            const float *plane = column + min(z, last_z) * stride_z;
#pragma unroll
            for (int y = 0; y < TILE_Y; y += STEP_Y)
                if (y + STEP_Y <= TILE_Y || y + thread_y < TILE_Y)
                    copy_word(shared_address(target + (z * TILE_Y + y) * PITCH),
                              plane + min(y + thread_y, last_y) * stride_y);
        }
    }
    if constexpr (REST_X > 0)
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE_Z * TILE_Y * REST_X; i += THREADS) {
            const int x = MAIN_X + i % REST_X, y = i / REST_X % TILE_Y, z = i / REST_X / TILE_Y;
            float *target = tile + (z * TILE_Y + y) * PITCH + x % WINDOW_X * PHASE + x / WINDOW_X;
            copy_word(shared_address(target),
                      source + min(z, last_z) * stride_z + min(y, last_y) * stride_y +
                          min(x, last_x));
        }
}

// Adds a stage's products. `tile` and `weights` are in shared memory. `tile` begins at the thread's
// first voxel.
__device__ __forceinline__ void add_products(
    Sums &sums, const float *tile, const float *weights) {
#pragma unroll 1
    for (int kernel_z = 0; kernel_z < TAPS_Z; ++kernel_z) {
#pragma unroll 1
        for (int kernel_x = 0; kernel_x < KERNEL_X; ++kernel_x) {
#pragma unroll 1
            for (int kernel_y = 0; kernel_y < KERNEL_Y; kernel_y += TAPS_Y) {
                float column[WINDOW_Z][WINDOW_X][COLUMN];
#pragma unroll
                for (int z = 0; z < WINDOW_Z; ++z)
#pragma unroll
                    for (int x = 0; x < WINDOW_X; ++x) {
                        const int at = kernel_x + x;
                        const float *first = tile +
                                             ((kernel_z + z) * TILE_Y + kernel_y) * PITCH +
                                             at % WINDOW_X * PHASE + at / WINDOW_X;
#pragma unroll
                        for (int y = 0; y < COLUMN; ++y) column[z][x][y] = first[y * PITCH];
                    }
#pragma unroll
                for (int tap = 0; tap < TAPS_Y; ++tap) {
                    float weight[MAPS_PITCH];
#pragma unroll
                    for (int map = 0; map < MAPS_PITCH; map += 4) {
                        const float4 four = *reinterpret_cast<const float4 *>(weights + map);
                        weight[map] = four.x;
                        weight[map + 1] = four.y;
                        weight[map + 2] = four.z;
                        weight[map + 3] = four.w;
                    }
                    weights += MAPS_PITCH;
#pragma unroll
                    for (int z = 0; z < WINDOW_Z; ++z)
#pragma unroll
                        for (int y = 0; y < THREAD_Y; ++y)
#pragma unroll
                            for (int x = 0; x < WINDOW_X; ++x)
#pragma unroll
                                for (int map = 0; map < MAPS; ++map)
                                    sums[z][y][x][map] = fmaf(column[z][x][y + tap], weight[map],
                                                              sums[z][y][x][map]);
                }
            }
        }
    }
}

__device__ __forceinline__ void begin_sums(Sums &sums, const float *bias) {
#pragma unroll
    for (int map = 0; map < MAPS; ++map) {
        const float of_map = bias[map];
#pragma unroll
        for (int z = 0; z < WINDOW_Z; ++z)
#pragma unroll
            for (int y = 0; y < THREAD_Y; ++y)
#pragma unroll
                for (int x = 0; x < WINDOW_X; ++x) sums[z][y][x][map] = of_map;
    }
}

// Hides the origin of a pointer from the compiler, which would compute it anew rather than keep it.
__device__ __forceinline__ float *kept(float *pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// Stores the maxima of the windows, after the activation, which keeps their order.
__device__ __forceinline__ void store(const Sums &sums, float *out, Index stride_f, int stride_y,
                                      int rows, int maps) {
#pragma unroll
    for (int map = 0; map < MAPS; ++map) {
        float *target = out = kept(out);
        const int present = map < maps ? rows : 0;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            float value = sums[0][row * WINDOW_Y][0][map];
#pragma unroll
            for (int z = 0; z < WINDOW_Z; ++z)
#pragma unroll
                for (int y = 0; y < WINDOW_Y; ++y)
#pragma unroll
                    for (int x = 0; x < WINDOW_X; ++x)
                        if (z + y + x > 0)
                            value = larger(value, sums[z][row * WINDOW_Y + y][x][map]);
            store_if(row < present, target, activation(value));
            target = kept(target + stride_y);
        }
        out += stride_f;
    }
}

// in: (image, in_features, z, y, x) by strides; out: (image, out_features, z, y, x) by strides.
// weights: (group, input map, kernel z, kernel x, kernel y, MAPS_PITCH); bias: (group, MAPS).
// Blocks: each part of the groups times tile x, y, z of each image. The block of the next part is
// `part_stride` blocks further, that of the next tile `tile_stride` blocks.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    convolve(const float *__restrict__ in, Index stride_n, Index stride_f, Index stride_z,
             Index stride_y, int in_features, int in_z, int in_y, int in_x,
             float *__restrict__ out, Index out_n, Index out_f, Index out_stride_z, Index out_stride_y,
             int out_features, int out_z, int out_y, int out_x,
             const float *__restrict__ weights, const float *__restrict__ bias, int groups,
             int groups_per_block, unsigned part_stride, unsigned tile_stride, int tiles_z,
             int tiles_y, int tiles_x) {
    extern __shared__ float4 shared[];
    float *tiles = reinterpret_cast<float *>(shared);
    float *stage_weights = tiles + (ONE_INPUT_STAGE ? 1 : 2) * TILE_FLOATS;

    const int parts = (groups + groups_per_block - 1) / groups_per_block;
    unsigned block = blockIdx.x;
    const int first_group = block / part_stride % parts * groups_per_block;
    block = block / tile_stride % (gridDim.x / parts);
    const int tile_x = block % tiles_x * (WARPS_X * LANES_X);
    block /= tiles_x;
    const int tile_y = block % tiles_y * (WARPS_Y * LANES_Y * ROWS);
    block /= tiles_y;
    const int tile_z = block % tiles_z * WARPS_Z;
    const int image = block / tiles_z;

    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    const int x = warp % WARPS_X * LANES_X + lane % LANES_X;
    const int y = (warp / WARPS_X % WARPS_Y * LANES_Y + lane / LANES_X) * ROWS;
    const int z = warp / WARPS_X / WARPS_Y;
    const int of_thread = (z * WINDOW_Z * TILE_Y + y * WINDOW_Y) * PITCH + x;

    constexpr int CHUNKS = KERNEL_Z / TAPS_Z;  // stages of one input map
    const int stages_of_group = in_features * CHUNKS;
    const int last_group = min(first_group + groups_per_block, groups);
    const int stages = (last_group - first_group) * stages_of_group;

    in += image * stride_n + Index(tile_z) * WINDOW_Z * stride_z +
          Index(tile_y) * WINDOW_Y * stride_y + tile_x * WINDOW_X;
    out += image * out_n + (tile_z + z) * out_stride_z + (tile_y + y) * out_stride_y + tile_x + x;
    weights += Index(first_group) * stages_of_group * STAGE_WEIGHTS;
    const bool stores = tile_z + z < out_z && tile_x + x < out_x;
    const int rows = stores ? min(ROWS, out_y - tile_y - y) : 0;

    const auto bring = [&](int stage) {
        const int of_group = stage % stages_of_group;
        if (!ONE_INPUT_STAGE || stage == 0) {
            const int first_z = of_group % CHUNKS * TAPS_Z;
            bring_tile(tiles + (ONE_INPUT_STAGE ? 0 : stage % 2) * TILE_FLOATS,
                       in + of_group / CHUNKS * stride_f + first_z * stride_z, stride_z, stride_y,
                       in_z - tile_z * WINDOW_Z - first_z - 1, in_y - tile_y * WINDOW_Y - 1,
                       in_x - tile_x * WINDOW_X - 1);
        }
        float *target = stage_weights + stage % 2 * STAGE_WEIGHTS;
        const float *source = weights + Index(stage) * STAGE_WEIGHTS;
        for (int i = threadIdx.x * 4; i < STAGE_WEIGHTS; i += THREADS * 4)
            copy_16_bytes(shared_address(target + i), source + i);
    };

    float sums[WINDOW_Z][THREAD_Y][WINDOW_X][MAPS];
    bring(0);
    int group = first_group, left = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
        if (left == 0) {
            begin_sums(sums, bias + group * MAPS);
            left = stages_of_group;
        }
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        if (stage + 1 < stages) bring(stage + 1);
        add_products(sums, tiles + (ONE_INPUT_STAGE ? 0 : stage % 2) * TILE_FLOATS + of_thread,
                     stage_weights + stage % 2 * STAGE_WEIGHTS);
        if (--left == 0) {
            const int first_map = group * MAPS;
            store(sums, out + first_map * out_f, out_f, out_stride_y, rows,
                  out_features - first_map);
            ++group;
        }
    }
}
