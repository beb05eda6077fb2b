// The kernels between cuFFT's transforms of lines, in a whole-image Fourier convolution.

typedef long long Index;

constexpr int SIDE = 32;
constexpr int ROWS = 8;

// Copies maps (map, z, y, x), by strides, to lines of real numbers, `pitch` apart; zeros follow
// from `size_x` on.
extern "C" __global__ void embed(const float *__restrict__ in, Index stride_f, Index stride_z,
                                 Index stride_y, int size_z, int size_y, int size_x,
                                 float *__restrict__ lines, int pitch, Index count) {
    const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
    if (i >= count) return;
    const int x = i % pitch;
    const Index line = i / pitch;
    const int y = line % size_y;
    const Index plane = line / size_y;
    lines[i] = x < size_x ? in[plane / size_z * stride_f + plane % size_z * stride_z +
                               y * stride_y + x]
                          : 0.0f;
}

// Transposes in (batch, row, in_pitch) to out (batch, column, out_pitch). Only the first `columns`
// of a row are copied; zeros follow from `rows` on. Blocks: tiles, those of the same rows side by
// side; parts of the batch.
extern "C" __global__ void __launch_bounds__(SIDE *ROWS)
    transpose(const float2 *__restrict__ in, Index rows, Index in_pitch, Index columns,
              float2 *__restrict__ out, Index out_pitch, Index batch) {
    __shared__ float2 tile[SIDE][SIDE + 1];
    const unsigned tiles = (columns + SIDE - 1) / SIDE;  // along a row
    const Index column = blockIdx.x % tiles * static_cast<Index>(SIDE);
    const Index row = blockIdx.x / tiles * static_cast<Index>(SIDE);
    for (Index item = blockIdx.y; item < batch; item += gridDim.y) {
        const float2 *from = in + item * rows * in_pitch;
        float2 *to = out + item * columns * out_pitch;
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            tile[i][threadIdx.x] = row + i < rows && column + threadIdx.x < columns
                                       ? from[(row + i) * in_pitch + column + threadIdx.x]
                                       : make_float2(0.0f, 0.0f);
        __syncthreads();
        for (int i = threadIdx.y; i < SIDE; i += ROWS)
            if (column + i < columns && row + threadIdx.x < out_pitch)
                to[(column + i) * out_pitch + row + threadIdx.x] = tile[threadIdx.x][i];
        __syncthreads();
    }
}

// Sums products of in (image, map, number) and the conjugates of kernels (map, number) over the
// maps, to sums (image, number), `sums_pitch` apart: a correlation. Blocks: part of the numbers,
// IMAGES of the images.
extern "C" __global__ void multiply(const float2 *__restrict__ in,
                                    const float2 *__restrict__ kernels,
                                    float2 *__restrict__ sums, Index sums_pitch, int images,
                                    int maps, Index numbers) {
    const Index number = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
    if (number >= numbers) return;
    const int first = blockIdx.y * IMAGES;
    float2 sum[IMAGES] = {};
#pragma unroll 4
    for (int map = 0; map < maps; ++map) {
        const float2 kernel = kernels[map * numbers + number];
#pragma unroll
        for (int i = 0; i < IMAGES; ++i)
            if (first + i < images) {
                const float2 value = in[((first + i) * Index(maps) + map) * numbers + number];
                sum[i].x = fmaf(value.x, kernel.x, fmaf(value.y, kernel.y, sum[i].x));
                sum[i].y = fmaf(value.y, kernel.x, fmaf(-value.x, kernel.y, sum[i].y));
            }
    }
#pragma unroll
    for (int i = 0; i < IMAGES; ++i)
        if (first + i < images) sums[(first + i) * sums_pitch + number] = sum[i];
}

// Copies lines of real numbers, `pitch` apart, to maps (map, z, y, x): scaled, through bias and
// activation.
extern "C" __global__ void extract(const float *__restrict__ lines, int pitch, float scale,
                                   const float *__restrict__ bias, float *__restrict__ out,
                                   int size_x, Index map_size, Index count) {
    const Index i = blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x;
    if (i >= count) return;
    out[i] = activation(lines[i / size_x * pitch + i % size_x] * scale + bias[i / map_size]);
}
