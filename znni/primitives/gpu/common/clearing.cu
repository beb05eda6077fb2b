// Zeros outside of a box, in one launch for all its sides. They may fill gaps between rows, too.

typedef long long Index;

// values: (image, map, z, y, x) by strides. A warp has some rows that follow each other.
extern "C" __global__ void __launch_bounds__(256)
    clear_outside(float* __restrict__ values, Index stride_n, Index stride_f, Index stride_z,
                  Index stride_y, int images, int maps, int size_z, int size_y, int size_x,
                  int start_z, int start_y, int start_x, int stop_z, int stop_y, int stop_x) {
    const Index rows = Index(images) * maps * size_z * size_y;
    const Index warps = Index(gridDim.x) * (blockDim.x / 32), share = (rows + warps - 1) / warps;
    const int lane = threadIdx.x % 32;
    const Index first = (Index(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32) * share;
    int y = first % size_y, z = first / size_y % size_z;
    int map = first / size_y / size_z % maps, image = first / size_y / size_z / maps;
    for (Index row = first; row < min(rows, first + share); ++row) {
        float* at = values + image * stride_n + map * stride_f + z * stride_z + y * stride_y;
        const bool inside = z >= start_z && z < stop_z && y >= start_y && y < stop_y;
        // From the end of what is inside to its beginning in the next row: whole sectors.
        const Index end = y + 1 < stop_y ? stride_y + start_x : size_x;
        if (!inside || y == start_y)
            for (int x = lane; x < (inside ? start_x : size_x); x += 32) at[x] = 0.0f;
        if (inside)
            for (Index x = stop_x + lane; x < end; x += 32) at[x] = 0.0f;
        if (++y < size_y) continue;
        y = 0;
        if (++z < size_z) continue;
        z = 0;
        if (++map < maps) continue;
        map = 0;
        ++image;
    }
}
