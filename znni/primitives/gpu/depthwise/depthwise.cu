// Depthwise convolution from shared memory: each output map sees one input map.
//
// A block computes some planes of one output map, for a tile of rows and columns. It goes along z. A
// thread has ROWS rows of ALONG positions. For each plane of input it adds to all planes of output
// that see it, in registers: LIVE of them. So each number that it loads counts for LIVE x KERNEL_Y
// products and more. cp.async brings a plane while others are computed.
//
// A transposed convolution has a kernel for each phase of its stride. Blocks are of one phase along z
// and y. A thread makes all PHASES_X phases along x, which lie side by side in the output.
//
// Sizes are macros (see geometry.py). `activated` comes from common/activation.py, the work of a block from
// blocks.cuh, and copies from common/shared_copies.cuh. Indices into device memory have 64 bits.

// What a tile and a thread see of a row of input.
constexpr int SEEN_X = (TILE_X - 1) * STRIDE_X + KERNEL_X;
constexpr int VECTORS = ((ALONG - 1) * STRIDE_X + KERNEL_X + 3) / 4;
static_assert(PITCH % 4 == 0 && PITCH >= SEEN_X && ALONG % 4 == 0, "rows are not vectors");

// A step brings STRIDE_Z planes. Weights: (plane of the step, tap along y, live plane, tap along x and
// phase, in whole vectors).
constexpr int TAPS = KERNEL_X * PHASES_X, TAP_VECTORS = (TAPS + 3) / 4;
constexpr int WEIGHTS = STRIDE_Z * KERNEL_Y * LIVE * TAP_VECTORS * 4;
constexpr int OUT = ALONG * PHASES_X;  // numbers of a row that a thread makes

typedef float Sums[LIVE][ROWS][OUT];

// Adds the products of a plane of input to the sums. `tile` begins at the thread's first number.
__device__ __forceinline__ void add_products(Sums &sums, const float *tile, const float4 *weights,
                                             int first, int last) {
#pragma unroll UNROLLED
    for (int kernel_y = 0; kernel_y < KERNEL_Y; ++kernel_y) {
        float row[ROWS][4 * VECTORS];
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
            const float4 *from =
                reinterpret_cast<const float4 *>(tile + (y * STRIDE_Y + kernel_y) * PITCH);
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                const float4 four = from[i];
                row[y][4 * i] = four.x;
                row[y][4 * i + 1] = four.y;
                row[y][4 * i + 2] = four.z;
                row[y][4 * i + 3] = four.w;
            }
        }
#pragma unroll
        for (int live = 0; live < LIVE; ++live) {
            // Planes of output before the first one, and after the last one, are not stored.
            if (SKIPS && (live < first || live > last)) continue;
            float weight[4 * TAP_VECTORS];
#pragma unroll
            for (int i = 0; i < TAP_VECTORS; ++i) {
                const float4 four = weights[(kernel_y * LIVE + live) * TAP_VECTORS + i];
                weight[4 * i] = four.x;
                weight[4 * i + 1] = four.y;
                weight[4 * i + 2] = four.z;
                weight[4 * i + 3] = four.w;
            }
#pragma unroll
            for (int tap = 0; tap < KERNEL_X; ++tap)
#pragma unroll
                for (int y = 0; y < ROWS; ++y)
#pragma unroll
                    for (int x = 0; x < ALONG; ++x)
#pragma unroll
                        for (int phase = 0; phase < PHASES_X; ++phase) {
                            float &sum = sums[live][y][x * PHASES_X + phase];
                            sum = fmaf(row[y][x * STRIDE_X + tap], weight[tap * PHASES_X + phase],
                                       sum);
                        }
        }
    }
}

// in: (image, map, z, y, x) by strides; out: the same. weights: (output map, phase along z, phase along
// y, WEIGHTS); biases and slopes: (output map).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    depthwise(const float *__restrict__ in, Index in_n, Index in_f, Index in_z, Index in_y,
              int size_z, int size_y, int size_x, const float *__restrict__ weights,
              const float *__restrict__ biases, const float *__restrict__ slopes,
              float *__restrict__ out, Index out_n, Index out_f, Index out_z, Index out_y, int maps,
              int repeats, int planes, int rows, int columns, int tiles_x, int tiles_y, int tiles_z,
              int each, int in_fours) {
    extern __shared__ float4 shared[];
    float4 *own_weights = shared;
    float *tiles = reinterpret_cast<float *>(shared + WEIGHTS / 4);

    const Place place = place_of_block(tiles_x, tiles_y, tiles_z, each, maps);
    const int map = place.map;

    const Index of_phase = (map * PHASES_Z + place.phase_z) * PHASES_Y + place.phase_y;
    const float4 *given = reinterpret_cast<const float4 *>(weights) + of_phase * (WEIGHTS / 4);
    for (int i = threadIdx.x; i < WEIGHTS / 4; i += THREADS) own_weights[i] = given[i];

    // Beyond the last plane, row or column any number will do, because sums of it are not stored.
    in += place.image * in_n + map / repeats * in_f + Index(place.y) * STRIDE_Y * in_y +
          place.x * STRIDE_X;
    int from[COPIES];
    find_sources(from, place, size_y, size_x, int(in_y));
    const int made = min(each, planes - place.z), steps = made + LIVE - 1;
    const auto bring = [&](int step) {
        float *target = tiles + step % (AHEAD + 1) * (STRIDE_Z * PLANE) + threadIdx.x;
#pragma unroll
        for (int plane = 0; plane < STRIDE_Z; ++plane) {
            const float *source =
                in + min((place.z + step) * STRIDE_Z + plane, size_z - 1) * in_z;
#pragma unroll
            for (int i = 0; i < COPIES; ++i)
                if (copies(i))
                    copy_word(shared_address(target + plane * PLANE + i * THREADS), source + from[i]);
        }
    };
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < steps) bring(step);
        commit_copies();
    }

    const int lane_x = threadIdx.x % LANES_X, lane_y = threadIdx.x / LANES_X;
    const int x = place.x + lane_x * ALONG, y = place.y + lane_y * ROWS;
    const int of_thread = lane_y * ROWS * STRIDE_Y * PITCH + lane_x * ALONG * STRIDE_X;
    const bool works = lane_y < LANES_Y && x < columns && y < rows;
    out += place.image * out_n + map * out_f + Index(place.z * PHASES_Z + place.phase_z) * out_z +
           Index(y * PHASES_Y + place.phase_y) * out_y + x * PHASES_X;
    const float bias = biases[map], slope = slopes[map];
    Sums sums;
#pragma unroll
    for (int live = 0; live < LIVE; ++live)
#pragma unroll
        for (int i = 0; i < ROWS * OUT; ++i) sums[live][i / OUT][i % OUT] = bias;

#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        wait_for_copies<AHEAD - 1>();
        __syncthreads();
        if (step + AHEAD < steps) bring(step + AHEAD);
        commit_copies();
        if (!works) continue;
        const float *tile = tiles + step % (AHEAD + 1) * (STRIDE_Z * PLANE) + of_thread;
#pragma unroll
        for (int plane = 0; plane < STRIDE_Z; ++plane)
            add_products(sums, tile + plane * PLANE,
                         own_weights + plane * (KERNEL_Y * LIVE * TAP_VECTORS), step - made + 1, step);
        if (step >= LIVE - 1) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if (y + row >= rows) continue;
                float *target = out + row * PHASES_Y * out_y;
                float value[OUT];
#pragma unroll
                for (int i = 0; i < OUT; ++i) value[i] = activated(sums[LIVE - 1][row][i], slope);
                if (in_fours && x + ALONG <= columns) {
#pragma unroll
                    for (int i = 0; i < OUT; i += 4)
                        *reinterpret_cast<float4 *>(target + i) =
                            make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
                } else {
#pragma unroll
                    for (int i = 0; i < OUT; ++i)
                        if (x + i / PHASES_X < columns) target[i] = value[i];
                }
            }
            out += PHASES_Z * out_z;
        }
#pragma unroll
        for (int live = LIVE - 1; live >= 0; --live)
#pragma unroll
            for (int i = 0; i < ROWS * OUT; ++i) {
                float &sum = sums[live][i / OUT][i % OUT];
                sum = live > 0 ? sums[live > 0 ? live - 1 : 0][i / OUT][i % OUT] : bias;
            }
    }
}
