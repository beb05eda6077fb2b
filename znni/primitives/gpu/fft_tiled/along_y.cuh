// Transforms along y, in place: the first LINES_Y values of LINES_X columns of a tile.

__device__ __forceinline__ void transform_along_y(float2* exchange) {
#pragma unroll 1
  for (int i = threadIdx.x; i < MAPS * HALF_Z * LINES_X; i += THREADS) {
    const int x = i % LINES_X;
    const int fz = i / LINES_X % HALF_Z;
    const int map = i / (LINES_X * HALF_Z);
    float2* line = exchange + map * MAP_STRIDE + fz * PLANE_STRIDE + x;
    float values[2 * TILE_Y];
#pragma unroll
    for (int y = 0; y < TILE_Y; ++y) {
      const float2 value = line[y * ROW_STRIDE];
      values[2 * y] = value.x;
      values[2 * y + 1] = value.y;
    }
    dft_y(values, values);
#pragma unroll
    for (int y = 0; y < LINES_Y; ++y)
      line[y * ROW_STRIDE] = make_float2(values[2 * y], values[2 * y + 1]);
  }
}
