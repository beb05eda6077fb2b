// Max-pooling with any window, at the first of its offsets or at all of them.
//
// Macros: MOST_THREADS of a block; WINDOW_Z, _Y, _X; OFFSETS_Z, _Y, _X: how many offsets are pooled
// at along each axis, 1 or the window.
//
// A thread has one cell of an output plane, for all offsets in y and x, and goes along z. Cells of
// a plane are numbered as they lie in memory. So neighbouring threads read from the same few rows,
// which stay in the first-level cache, and write next to each other. A thread keeps the maxima of
// the planes behind it, so that it reads each plane once.

constexpr int ROWS = WINDOW_Y + OFFSETS_Y - 1;     // input rows that a cell sees in each plane
constexpr int COLUMNS = WINDOW_X + OFFSETS_X - 1;  // and input columns
constexpr bool ALL_OFFSETS = OFFSETS_Z > 1;        // along z

// Computes the maxima of one plane's windows, at each offset in y and x.
__device__ __forceinline__ void pool_plane(const float* __restrict__ corner, long long stride_y,
                                           float (&maxima)[OFFSETS_Y][OFFSETS_X]) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        float values[COLUMNS];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) {
            values[column] = __ldg(corner + row * stride_y + column);
        }
#pragma unroll
        for (int x = 0; x < OFFSETS_X; ++x) {
            float across = values[x];
#pragma unroll
            for (int column = 1; column < WINDOW_X; ++column) {
                across = larger(across, values[x + column]);
            }
#pragma unroll
            for (int y = 0; y < OFFSETS_Y; ++y) {
                if (row == y) {
                    maxima[y][x] = across;
                } else if (row > y && row < y + WINDOW_Y) {
                    maxima[y][x] = larger(maxima[y][x], across);
                }
            }
        }
    }
}

// input: (n, maps, planes, rows, columns), the last axis contiguous; strides are in elements.
// output: (n * offsets, maps, out_z, out_y, out_x), likewise.
// Each thread of a block has a cell, in the output planes [first, first + chunk) of one map of one
// image. The grid is blocks of cells, which vary fastest, times chunks times maps times images.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
max_pooling(const float* __restrict__ input, long long stride_n, long long stride_f, long long stride_z,
            long long stride_y, float* __restrict__ output, long long out_stride_n,
            long long out_stride_f, long long out_stride_z, long long out_stride_y, int maps,
            int out_z, int out_y, int out_x, int chunk) {
    const int plane = out_y * out_x;
    const int blocks = (plane + blockDim.x - 1) / blockDim.x;
    const int chunks = (out_z + chunk - 1) / chunk;
    int index = blockIdx.x;
    const int cell = index % blocks * blockDim.x + threadIdx.x;
    index /= blocks;
    const int first = index % chunks * chunk;
    index /= chunks;
    const int map = index % maps;
    const long long image = index / maps;
    if (cell >= plane) return;
    const int groups = min(chunk, out_z - first);  // each has as many planes as the window

    input += image * stride_n + map * stride_f + (long long)first * WINDOW_Z * stride_z +
             (long long)(cell / out_x) * WINDOW_Y * stride_y + (long long)(cell % out_x) * WINDOW_X;
    output += image * (OFFSETS_Z * OFFSETS_Y * OFFSETS_X) * out_stride_n + map * out_stride_f +
              first * out_stride_z + cell / out_x * out_stride_y + cell % out_x;

    float maxima[WINDOW_Z][OFFSETS_Y][OFFSETS_X];  // the maxima of the last planes, in turn
    for (int group = 0; group < groups + ALL_OFFSETS; ++group) {
#pragma unroll
        for (int turn = 0; turn < WINDOW_Z; ++turn) {
            if (ALL_OFFSETS && group == groups && turn == WINDOW_Z - 1) break;
            pool_plane(input, stride_y, maxima[turn]);
            input += stride_z;
            // The window that ends with this plane.
            const bool begins_here = turn == WINDOW_Z - 1;
            const int offset = begins_here ? 0 : turn + 1;
            const int at = begins_here ? group : group - 1;
            if (at < 0 || (!ALL_OFFSETS && !begins_here)) continue;
            float* out = output + at * out_stride_z +
                         (long long)offset * (OFFSETS_Y * OFFSETS_X) * out_stride_n;
#pragma unroll
            for (int y = 0; y < OFFSETS_Y; ++y) {
#pragma unroll
                for (int x = 0; x < OFFSETS_X; ++x) {
                    float largest = maxima[0][y][x];
#pragma unroll
                    for (int other = 1; other < WINDOW_Z; ++other) {
                        largest = larger(largest, maxima[other][y][x]);
                    }
                    out[(y * OFFSETS_X + x) * out_stride_n] = largest;
                }
            }
        }
    }
}
