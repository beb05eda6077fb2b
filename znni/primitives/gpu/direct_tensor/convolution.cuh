// Direct convolution by products of tensor cores, with float32 sums: layouts, and how sums are
// stored. Kernels are in convolution_wgmma.cu and convolution_mma.cu.
//
// The image is float16, 8 maps of a voxel together: 16 bytes. Shared memory holds the voxels that a
// block sees, for 16 maps, group by group in their order. So from any voxel on, 8 voxels along x
// are one of the 8 x 8 matrices that a side of a product consists of. The left side has 8 x
// 8 voxels along y and x as its 64 rows, and the maps as its 16 columns. Seen from another tap, the
// same voxels are the same rows at another address. The right side is a tap's weights, maps x maps.
// Nothing is unfolded, nothing is copied.
//
// Each of two warpgroups sums TILES times 64 voxels in registers. A pass over some of the input
// maps may begin with the sums of the pass before it (ADDS), and only the last one (LAST) applies
// the activation: tensor cores cut off what they add, so they add no more than is exact.

constexpr int WARPGROUPS = 2;
constexpr int ROWS = 8;  // rows of a matrix, and matrices of a product's left side
constexpr int TILES = TILES_Z * TILES_Y * TILES_X;  // products that a warpgroup sums
constexpr int OUT_Z = WARPGROUPS * TILES_Z, OUT_Y = ROWS * TILES_Y, OUT_X = ROWS * TILES_X;
constexpr int SEEN_Z = OUT_Z + KERNEL_Z - 1;
constexpr int SEEN_Y = OUT_Y + KERNEL_Y - 1;
constexpr int SEEN_X = OUT_X + KERNEL_X - 1;
constexpr int VOXEL = 16;  // bytes of a group of 8 maps
constexpr int GROUP_BYTES = SEEN_Z * SEEN_Y * SEEN_X * VOXEL;
constexpr int PART_BYTES = 2 * GROUP_BYTES;
constexpr int IMAGE_BYTES = PARTS * PART_BYTES;
constexpr int RIGHT_BYTES = 2 * COLUMNS * VOXEL;  // weights of a tap, for 16 input maps
constexpr int TAP_BYTES = PARTS * RIGHT_BYTES;
constexpr int STAGE_BYTES = TAPS_Z * TAPS_Y * TAPS_X * TAP_BYTES;
constexpr int STAGES_Y = KERNEL_Y / TAPS_Y, STAGES_X = KERNEL_X / TAPS_X;
constexpr int CHUNK_STAGES = KERNEL_Z / TAPS_Z * STAGES_Y * STAGES_X;

struct Vec3 {
  int z, y, x;
};

// The maps and the output voxels that a block computes at a time.
struct Place {
  int pass, item;
  Vec3 first;
};

__device__ __forceinline__ Place place_of(long long index, int passes, Vec3 tiles, int first_x) {
  Place place;
  place.pass = index % passes;
  index /= passes;
  place.first.x = first_x + index % tiles.x * OUT_X;
  index /= tiles.x;
  place.first.y = index % tiles.y * OUT_Y;
  index /= tiles.y;
  place.first.z = index % tiles.z * OUT_Z;
  place.item = index / tiles.z;
  return place;
}

// Stores without a branch, because a branch would cost more than the store.
__device__ __forceinline__ void store_if(unsigned wanted, float* target, float value) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.f32 [%1], %2;}" ::"r"(
                   wanted),
               "l"(target), "f"(value)
               : "memory");
}

// Exchanges a with the b of the lane DISTANCE further. Neighbours along x, which were in two
// registers of a lane, are then in two lanes.
template <int DISTANCE>
__device__ __forceinline__ void exchange(float& a, float& b) {
  const bool second = threadIdx.x & DISTANCE;
  const float other = __shfl_xor_sync(0xffffffffu, second ? a : b, DISTANCE);
  a = second ? other : a;
  b = second ? b : other;
}

// Exchanges one register of all products that lie side by side along x.
__device__ __forceinline__ void exchange_tiles(float (&sum)[TILES][COLUMNS / 2], int first, int i) {
  if (TILES_X > 1) {
#pragma unroll
    for (int tile = first; tile < first + TILES_X; tile += 2)
      exchange<1>(sum[tile][i], sum[tile + 1][i]);
  }
  if (TILES_X > 2) {
    exchange<2>(sum[first][i], sum[first + 2][i]);
    exchange<2>(sum[first + 1][i], sum[first + 3][i]);
  }
}

// Stores a warpgroup's sums. A lane has a voxel for two neighbouring maps of each 8, in each of
// TILES_X products along x. It exchanges these for one voxel and TILES_X times as many maps, so
// that the voxels of a row are stored together.
__device__ __forceinline__ void store(float (&sum)[TILES][COLUMNS / 2], float* y,
                                      long long item_stride, long long map_stride,
                                      long long plane_stride, long long row_stride, int maps,
                                      Vec3 size, const Place& place, int warpgroup,
                                      const float* factors, const float* bias, float scale) {
  const int lane = threadIdx.x % 32;
  const int z = place.first.z + warpgroup * TILES_Z;
  const int row = place.first.y + threadIdx.x % 128 / 32 * 2;
  const int x = place.first.x + lane / 4 + lane % TILES_X * ROWS;
  const int first_map = place.pass * COLUMNS + lane % 4 / TILES_X * TILES_X * 2;
  y += place.item * item_stride + first_map * map_stride;
  constexpr int LINES = 2 * TILES / TILES_X;
  long long voxel[LINES];
  unsigned inside = 0;
#pragma unroll
  for (int i = 0; i < LINES; ++i) {
    const int at_z = z + i / 2 / TILES_Y;
    const int at_y = row + i / 2 % TILES_Y * ROWS + i % 2;
    voxel[i] = at_z * plane_stride + at_y * row_stride + x;
    if (at_z < size.z && at_y < size.y && x < size.x) inside |= 1u << i;
  }
#pragma unroll
  for (int eight = 0; eight < COLUMNS / ROWS; ++eight) {
#pragma unroll
    for (int i = 0; i < 4 * TILES / TILES_X; ++i)
      exchange_tiles(sum, i / 4 * TILES_X, eight * 4 + i % 4);
#pragma unroll
    for (int map = 0; map < 2 * TILES_X; ++map) {
      const int of_all = first_map + eight * ROWS + map;
      const unsigned stored = of_all < maps ? inside : 0;
      const float factor = __ldg(factors + of_all) * scale;
      const float offset = __ldg(bias + of_all);
#pragma unroll
      for (int i = 0; i < LINES; ++i) {
        const float value = sum[i / 2 * TILES_X + map / 2][eight * 4 + i % 2 * 2 + map % 2];
        const float before = ADDS ? (stored & 1u << i ? y[voxel[i]] : 0.0f) : offset;
        const float total = fmaf(value, factor, before);
        store_if(stored & 1u << i, y + voxel[i], LAST ? activation(total) : total);
      }
      y += map + 1 < 2 * TILES_X ? map_stride : (ROWS - 2 * TILES_X + 1) * map_stride;
      asm("" : "+l"(y));  // makes each address one addition
    }
  }
}
