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
// A convolution with a stride sees another part of the image at each shift along z and y: every
// STEP-th row of voxels, from a first one on. A row of shared memory has every STEP-th voxel, again from
// each first one on. So neighbours of the output see neighbours there.
//
// Each of two warpgroups sums TILES times 64 voxels in registers. A pass over some of the input
// maps may begin with the sums of the pass before it (ADDS), and only the last one (LAST) applies
// the activation: tensor cores cut off what they add, so they add no more than is exact. Or the sums
// of each 16 maps are added to those of all before, in other registers (ADDS_UP).
//
// An image may also be a packed value, as other layers made it (READS_PACKED): its strides are
// given, and each group of 8 maps has a record of {largest number, scale}. If its numbers have two
// parts, the low ones of a group lie half of the way to the next group. The output may be a packed
// value (WRITES_PACKED). It gets a scale by which no number can leave the range of float16. Another
// packed value may lie in the output's memory, to which sums are added (ADDS_TO_OUTPUT). Or the
// numbers of each map are added up, and their squares, for a norm (SUMS_MAPS).
//
// Voxel v of the sums may be the voxels PHASES * v + phase of a packed output, for each phase. Groups
// of sums are then those of a group of the output, phase after phase.

// Further arguments of kernels: where the voxels of a packed image lie, in voxels; the records of a
// packed output, with the largest sum of a map's weights and the largest bias; the sums of its maps,
// and how many parts an item has of them; and the records of a value to which sums are added, with the share of its numbers that bounds those
// of the output.
#if READS_PACKED
#define IMAGE_STRIDES \
  long long image_item, long long image_group, long long image_plane, int image_row,
#else
#define IMAGE_STRIDES
#endif
#if WRITES_PACKED
#define OUTPUT unsigned
#define MADE_RECORDS , unsigned *made, float weight_sum, float most_bias
#else
#define OUTPUT float
#define MADE_RECORDS
#endif
#if SUMS_MAPS
#define MAP_SUMS , double *map_sums, int item_parts
#define SUMS_OF_MAPS map_sums, item_parts
#else
#define MAP_SUMS
#define SUMS_OF_MAPS nullptr, 0
#endif
#if ADDS_TO_OUTPUT
#define OTHER_RECORDS , const unsigned *other, float most_of_other
#define OTHER other
#define MOST_OF_OTHER most_of_other
#else
#define OTHER_RECORDS
#define OTHER nullptr
#define MOST_OF_OTHER 0.0f
#endif

// The sums of all chunks, and what their products are multiplied by.
#if ADDS_UP
#define MADE all
#define SCALE_OF_MADE (JOINED ? 1.0f : scale)
#else
#define MADE sum
#define SCALE_OF_MADE scale
#endif

constexpr int WARPGROUPS = 2;
constexpr int ROWS = 8;  // rows of a matrix, and matrices of a product's left side
constexpr int TILES = TILES_Z * TILES_Y * TILES_X;  // products that a warpgroup sums
constexpr int OUT_Z = WARPGROUPS * TILES_Z, OUT_Y = ROWS * TILES_Y, OUT_X = ROWS * TILES_X;
constexpr int SHIFTS_Y = STEP_Y < KERNEL_Y ? STEP_Y : KERNEL_Y;
constexpr int SHIFTS_X = STEP_X < KERNEL_X ? STEP_X : KERNEL_X;
constexpr int SHIFTS = (STEP_Z < KERNEL_Z ? STEP_Z : KERNEL_Z) * SHIFTS_Y;
constexpr int SEEN_Z = OUT_Z + (KERNEL_Z - 1) / STEP_Z;
constexpr int SEEN_Y = OUT_Y + (KERNEL_Y - 1) / STEP_Y;
constexpr int SHIFT_X = OUT_X + (KERNEL_X - 1) / STEP_X;  // voxels of a row from each first one on
constexpr int SEEN_X = SHIFTS_X * SHIFT_X;
constexpr int VOXEL = 16;  // bytes of a group of 8 maps
constexpr int GROUP_VOXELS = SEEN_Z * SEEN_Y * SEEN_X;
constexpr int GROUP_BYTES = GROUP_VOXELS * VOXEL;
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

// Returns the stages of a shift along y, for each plane and part of a row; and those of a shift.
__device__ __forceinline__ constexpr int stages_along_y(int shift) {
  return SHIFTS == 1 ? STAGES_Y : (KERNEL_Y - 1 - shift % SHIFTS_Y) / STEP_Y + 1;
}

__device__ __forceinline__ constexpr int stages_of(int shift) {
  return SHIFTS == 1 ? CHUNK_STAGES
                     : ((KERNEL_Z - 1 - shift / SHIFTS_Y) / STEP_Z + 1) * stages_along_y(shift);
}

constexpr int FEWEST_STAGES = stages_of(SHIFTS - 1);

// Returns the voxel of shared memory that the first tap of a stage of a shift sees first.
__device__ __forceinline__ int first_voxel(int stage, int shift) {
  const int stages_y = stages_along_y(shift);
  const int z = stage / STAGES_X / stages_y * TAPS_Z;
  const int row = z * SEEN_Y + stage / STAGES_X % stages_y * TAPS_Y;
  return row * SEEN_X + stage % STAGES_X * TAPS_X;
}

// Returns the voxels of a row between those that its first tap and another one see first.
__device__ __forceinline__ constexpr int along_row(int tap) {
  return tap % STEP_X * SHIFT_X + tap / STEP_X;
}

// A voxel that a block sees at a shift.
struct Seen {
  Vec3 from;  // its place in the image, from the block's first voxel on
  int to;     // its place in shared memory

  // Voxels are counted as they lie in the image.
  __device__ __forceinline__ Seen(int i, int shift) {
    const int x = i % SEEN_X;
    from.x = x / SHIFTS_X * STEP_X + x % SHIFTS_X;
    from.y = i / SEEN_X % SEEN_Y * STEP_Y + shift % SHIFTS_Y;
    from.z = i / SEEN_X / SEEN_Y * STEP_Z + shift / SHIFTS_Y;
    to = i - x + x % SHIFTS_X * SHIFT_X + x / SHIFTS_X;
  }
};

// Where the voxels of an image lie, in voxels. A group has one part of its numbers.
struct ImageStrides {
  long long item, group, plane;
  int row;

  // Returns the place of a voxel in a group.
  __device__ __forceinline__ long long to(const Vec3& voxel) const {
    return voxel.z * plane + (voxel.y * row + voxel.x);
  }

  // Returns the place of a chunk's group, of two, part after part.
  __device__ __forceinline__ long long to_group(int of_chunk) const {
    return (READS_PACKED ? of_chunk % 2 * PARTS + of_chunk / 2 : of_chunk) * group;
  }
};

// Those of an image without gaps.
__device__ __forceinline__ ImageStrides strides_of(Vec3 size) {
  const long long plane = (long long)size.y * size.x;
  return {ALL_CHUNKS * 2 * PARTS * size.z * plane, size.z * plane, plane, size.x};
}

// The scale of a chunk of an image's maps.
__device__ __forceinline__ float image_scale(const unsigned* records, int chunk) {
  return READS_PACKED ? __uint_as_float(records[4 * chunk + 1]) : scale_for(*records);
}

// Returns the largest number of some records.
__device__ __forceinline__ float largest_of(const unsigned* records, int groups) {
  unsigned largest = 0;
  for (int group = 0; group < groups; ++group) largest = max(largest, records[2 * group]);
  return __uint_as_float(largest);
}

// What bounds a packed output: no sum of products is larger than the largest number of the image
// times the weights' sum.
__device__ __forceinline__ float made_bound(const unsigned* records, float weight_sum,
                                            float most_bias, int maps, const unsigned* other,
                                            float most_of_other) {
  const float largest = largest_of(records, READS_PACKED ? IMAGE_GROUPS : 1);
  const float bound = fmaf(largest, weight_sum, most_bias);
  return ADDS_TO_OUTPUT ? fmaf(largest_of(other, maps / ROWS), most_of_other, bound) : bound;
}

// Adds the sums of a chunk to those of all chunks, in whose unit they are then.
__device__ __forceinline__ void add_up(float (&all)[TILES][COLUMNS / 2],
                                       const float (&sum)[TILES][COLUMNS / 2], float scale) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) all[tile][i] = fmaf(sum[tile][i], scale, all[tile][i]);
}

__device__ __forceinline__ void clear(float (&sum)[TILES][COLUMNS / 2]) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sum[tile][i] = 0.0f;
}

// Takes over the scale of the chunk after, where values of several scales are joined.
template <int ROWS_OF_SUMS, int COUNT>
__device__ __forceinline__ void rescale(float (&sums)[ROWS_OF_SUMS][COUNT], float factor) {
#pragma unroll
  for (int row = 0; row < ROWS_OF_SUMS; ++row)
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[row][i] *= factor;
}

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

// The part of an image that a block sees.
struct View {
  const uint4* first;
  Vec3 size;  // from the first voxel to the image's end
};

__device__ __forceinline__ View view_of(const uint4* image, Vec3 size, const ImageStrides& strides,
                                        const Place& place) {
  const Vec3 first = {place.first.z * STEP_Z, place.first.y * STEP_Y, place.first.x * STEP_X};
  return {image + place.item * strides.item + first.z * strides.plane +
              (long long)first.y * strides.row + first.x,
          {size.z - first.z, size.y - first.y, size.x - first.x}};
}

// Brings the voxels of a chunk that a block sees at a shift, of which a thread has every `threads`-th
// one. To find where a voxel lies takes many instructions, so it is done once for all groups. Voxels
// beyond the image are left as they are: no output that depends on them is stored. If a packed image
// has an odd number of groups, zeros stand for the last one. `copy` takes a place in shared memory,
// a voxel, and whether it is there.
template <class Copy>
__device__ __forceinline__ void bring_voxels(unsigned target, const View& view, const uint4* source,
                                             const ImageStrides& strides, int chunk, int shift,
                                             int thread, int threads, const Copy& copy) {
#pragma unroll(PARTS == 1 ? 2 : 1)
  for (int i = thread; i < GROUP_VOXELS; i += threads) {
    const Seen seen(i, shift);
    const Vec3 from = seen.from;
    if (from.z < view.size.z && from.y < view.size.y && from.x < view.size.x) {
      const uint4* voxel = source + strides.to(from);
#pragma unroll
      for (int group = 0; group < 2 * PARTS; ++group) {
        const bool present =
            !READS_PACKED || IMAGE_GROUPS % 2 == 0 || 2 * chunk + group % 2 < IMAGE_GROUPS;
        const uint4* of_group = present ? voxel + strides.to_group(group) : voxel;
        copy(target + seen.to * VOXEL + group * GROUP_BYTES, of_group, present);
      }
    }
  }
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

#if WRITES_PACKED
// Brings what lies in the output's memory to the second-level cache, where it is waited for less.
// A lane asks for one of a warp's rows of 8 voxels, in some groups. A group's stride leads over all
// parts of its numbers.
__device__ __forceinline__ void prefetch_packed(const unsigned* y, long long item_stride,
                                                long long group_stride, long long plane_stride,
                                                long long row_stride, int maps, Vec3 size,
                                                const Place& place, int warpgroup) {
  constexpr int LINES = 2 * TILES;
  const int lane = threadIdx.x % 32, tile = lane % LINES / 2;
  const int z = place.first.z + warpgroup * TILES_Z + tile / TILES_X / TILES_Y;
  const int row = place.first.y + threadIdx.x % 128 / 32 * 2 + tile / TILES_X % TILES_Y * ROWS +
                  lane % 2;
  const int x = place.first.x + tile % TILES_X * ROWS;
  const int first_group = place.pass * (COLUMNS / ROWS);
  if (z >= size.z || row >= size.y || x >= size.x) return;
  y += place.item * item_stride + z * plane_stride + row * row_stride + x * (VOXEL / 4);
  for (int eight = lane / LINES; eight < COLUMNS / ROWS; eight += 32 / LINES)
    if (first_group + eight < maps / ROWS)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(
            y + ((first_group + eight) * PARTS + part) * (group_stride / PARTS)));
}

constexpr int PHASES = PHASES_Z * PHASES_Y * PHASES_X;
// Whether lanes exchange two phases along x, so that they store 8 neighbours of the output.
constexpr bool EXCHANGES_PHASES = PHASES_X == 2 && COLUMNS / ROWS % 2 == 0;

// Stores a warpgroup's sums as a packed value. A lane has two neighbouring maps of a voxel, which
// are 4 bytes; four lanes have a voxel's 8 maps, and a warp has 8 voxels side by side. Strides are
// in units of 4 bytes, that of maps between groups with all parts of their numbers. Returns the
// largest number as it is stored, times the scale of the output.
//
// What is added of another value is loaded before it is stored over. `map_sums` are those of the
// warp: (map, sum or sum of squares). Sums of 64 voxels are in float32, all others in float64. Only
// this warp adds to them, always in the same order.
//
// Of two phases that are exchanged, a lane of the warp's first half has the first one of two voxels
// that are 4 apart. A lane of the second half has their second phase.
__device__ __forceinline__ float store_packed(
    float (&sum)[TILES][COLUMNS / 2], unsigned* y, long long item_stride, long long group_stride,
    long long plane_stride, long long row_stride, int maps, Vec3 size, const Place& place,
    int warpgroup, const float* factors, const float* bias, float scale, float out_scale,
    const unsigned* other, double* map_sums) {
  constexpr int VOXEL_WORDS = VOXEL / 4;
  // Words in as many registers as are left, of both parts.
  constexpr int HELD = COLUMNS <= 48 && PARTS == 1 ? 2 * TILES : TILES;
  int lane = threadIdx.x % 32;
  asm volatile("" : "+r"(lane));  // what follows from it takes no registers during products
  const int z = place.first.z + warpgroup * TILES_Z;
  const int row = place.first.y + threadIdx.x % 128 / 32 * 2;
  const int x = place.first.x + (EXCHANGES_PHASES ? lane / 4 % 4 : lane / 4);
  const int first_map = place.pass * COLUMNS;
  const int second_phase = EXCHANGES_PHASES ? lane / 16 : 0;
  y += place.item * item_stride + second_phase * VOXEL_WORDS + lane % 4;
  long long first_row[TILES];
  const auto voxel = [&](int i) { return first_row[i / 2] + i % 2 * PHASES_Y * row_stride; };
  // Some activations keep the unit of a sum, so that sums are made in that of the output.
  const float unit = KEEPS_UNIT ? out_scale : 1.0f, sum_scale = scale * unit;
  unsigned inside = 0;
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
    const int tile = i / 2;
    const int at_z = z + tile / TILES_X / TILES_Y;
    const int at_y = row + tile / TILES_X % TILES_Y * ROWS + i % 2;
    const int at_x = x + tile % TILES_X * ROWS;
    if (i % 2 == 0)
      first_row[tile] = at_z * (PHASES_Z * plane_stride) + at_y * (PHASES_Y * row_stride) +
                        at_x * (PHASES_X * VOXEL_WORDS);
#pragma unroll
    for (int half = 0; half <= EXCHANGES_PHASES; ++half)
      if (at_z < size.z && at_y < size.y && at_x + 4 * half < size.x)
        inside |= 1u << (i + half * 2 * TILES);
  }
#pragma unroll
  for (int eight = 0; eight < COLUMNS / ROWS; ++eight) {
    const int half = EXCHANGES_PHASES ? eight % 2 : 0;
    if (EXCHANGES_PHASES && half == 0) {
#pragma unroll
      for (int i = 0; i < 4 * TILES; ++i)
        exchange<16>(sum[i / 4][eight * 4 + i % 4], sum[i / 4][eight * 4 + 4 + i % 4]);
    }
    const int map = first_map + (eight - half + second_phase) * ROWS + lane % 4 * 2;
    const unsigned stored = first_map + eight * ROWS < maps ? inside >> half * 2 * TILES : 0;
    const int of_all = first_map / ROWS + eight, phase = of_all % PHASES;
    const int phase_x = EXCHANGES_PHASES ? ROWS * half : phase % PHASES_X;
    unsigned* group = y + of_all / PHASES * group_stride +
                      phase / PHASES_X / PHASES_Y * plane_stride +
                      phase / PHASES_X % PHASES_Y * row_stride + phase_x * VOXEL_WORDS;
    asm volatile("" : "+l"(group));  // makes each address one addition
    const float factor[2] = {__ldg(factors + map) * sum_scale, __ldg(factors + map + 1) * sum_scale};
    const float offset[2] = {__ldg(bias + map) * unit, __ldg(bias + map + 1) * unit};
    const int of_other = min(of_all, maps / ROWS - 1);
    const float held_factor =
        ADDS_TO_OUTPUT ? unit / __uint_as_float(__ldg(other + 2 * of_other + 1)) : 0.0f;
    unsigned held[PARTS][HELD];
    const long long to_part = group_stride / PARTS;
    float added_up[4] = {};  // two maps, and their squares
    const int number = lane / 4;  // of those that the lane adds, see total_of_lanes
    const bool adds_up = SUMS_MAPS && number < 4 && first_map + eight * ROWS < maps;
    double* const sum_place = map_sums + 2 * (map + number % 2) + number / 2;
    const double sum_before = adds_up ? *sum_place : 0.0;
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      if (ADDS_TO_OUTPUT && i % HELD == 0) {
#pragma unroll
        for (int j = 0; j < PARTS * HELD; ++j)
          held[j / HELD][j % HELD] = stored & 1u << i + j % HELD
                                         ? group[j / HELD * to_part + voxel(i + j % HELD)]
                                         : 0;
      }
      float2 before = ADDS_TO_OUTPUT ? number_of(held[0][i % HELD]) : make_float2(0.0f, 0.0f);
      if (ADDS_TO_OUTPUT && PARTS == 2) {
        const float2 low = number_of(held[PARTS - 1][i % HELD]);
        before.x += low.x;
        before.y += low.y;
      }
      float made[2];
#pragma unroll
      for (int of_two = 0; of_two < 2; ++of_two) {
        const float value = sum[i / 2][eight * 4 + i % 2 * 2 + of_two];
        float total = fmaf(value, factor[of_two], offset[of_two]);
        if (ADDS_TO_OUTPUT) total = fmaf(of_two ? before.y : before.x, held_factor, total);
        made[of_two] = scaled_activation(total, out_scale);
        if (SUMS_MAPS) {
          const float counted = stored & 1u << i ? made[of_two] : 0.0f;
          added_up[of_two] += counted;
          added_up[2 + of_two] = fmaf(counted, counted, added_up[2 + of_two]);
        }
      }
      const unsigned rounded = rounded_pair(made[0], made[1]);
      store_if(stored & 1u << i, group + voxel(i), rounded);
      if (PARTS == 2)
        store_if(stored & 1u << i, group + to_part + voxel(i),
                 rounding_of(made[0], made[1], rounded));
      if (stored & 1u << i) {
        most = fmaxf(most, fabsf(made[0]));  // NaN is no number
        most = fmaxf(most, fabsf(made[1]));
      }
    }
#if SUMS_MAPS
    const float of_lane = total_of_lanes(added_up);
    const float unscaled = 1.0f / out_scale;
    if (adds_up)
      *sum_place = sum_before + (double)of_lane * unscaled * (number / 2 ? unscaled : 1.0f);
#endif
  }
  return most;
}

// Returns the sums of a warp for an item: for each place, if a launch has a block for each of an
// item, else for each block.
__device__ __forceinline__ double* sums_of_warp(double* map_sums, int item_parts, long long index,
                                                int passes, Vec3 tiles, int maps) {
  const unsigned places = tiles.z * tiles.y * tiles.x;
  const long long place = index / passes, item = place / places;
  const unsigned part = places <= gridDim.x ? place % places : blockIdx.x;
  const long long of_warp = item * item_parts + part * (4 * WARPGROUPS) + threadIdx.x / 32;
  return map_sums + of_warp * maps * 2;
}

// Notes the scale and the largest number of a packed output. All threads of a warp call it once, with
// the largest of the numbers that they stored, times the scale. If a number is not finite, the largest
// of the others is below the bound.
__device__ __forceinline__ void note(unsigned* made, float bound, float most, int maps) {
  const float out_scale = scale_below(bound);
  for (int group = threadIdx.x; group < maps / ROWS / PHASES; group += 128 * WARPGROUPS)
    if (blockIdx.x == 0) made[2 * group + 1] = __float_as_uint(out_scale);
  const unsigned bits = __float_as_uint(fminf(most / out_scale, bound));
  const unsigned largest = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) atomicMax(made, largest);
}
#endif
