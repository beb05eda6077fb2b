// Direct convolution by products of tensor cores, with float32 sums.
//
// The image is float16, 8 maps of a voxel together: 16 bytes. Shared memory holds the voxels that a
// block sees, for 16 maps, group by group in their order. So from any voxel on, 8 voxels along x
// are one of the 8 x 8 matrices that a side of a product consists of (wgmma). The left side has 8 x
// 8 voxels along y and x as its 64 rows, and the maps as its 16 columns. Seen from another tap, the
// same voxels are the same rows at another address. The right side is a tap's weights, maps x maps.
// Nothing is unfolded, nothing is copied.
//
// One warpgroup brings image and weights, ahead of two others that each sum TILES times 64 voxels
// in registers. Products come from common/wgmma.cuh.

constexpr int WARPGROUPS = 2;
constexpr int IMAGE_WARPS = 3;  // of the warpgroup that brings; the fourth brings weights
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

// A barrier in shared memory, which counts arrivals and copied bytes, phase after phase.
__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait(unsigned barrier, unsigned phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

__device__ __forceinline__ void copy(unsigned target, const void* source, int bytes,
                                     unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void copy_voxel(unsigned target, const uint4* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Places in shared memory that are filled and freed in turn.
template <int COUNT>
struct Ring {
  unsigned full;  // the first of COUNT barriers, and as many for free places
  int place = 0;
  unsigned phase = 0;

  __device__ explicit Ring(unsigned barriers) : full(barriers) {}
  __device__ unsigned filled() const { return full + 8 * place; }
  __device__ unsigned freed() const { return full + 8 * (COUNT + place); }
  __device__ void next() {
    if (++place == COUNT) {
      place = 0;
      phase ^= 1;
    }
  }
};

// Brings the voxels that blocks see, 16 maps after 16. Voxels beyond the image are left as they
// are: no output that depends on them is stored.
__device__ __forceinline__ void bring_image(const uint4* image, Vec3 size, long long first,
                                            long long count, int passes, Vec3 tiles, int first_x,
                                            unsigned target, Ring<2> ring) {
  for (long long index = first; index < count; index += gridDim.x) {
    const Place place = place_of(index, passes, tiles, first_x);
    const Vec3 seen = {min(SEEN_Z, size.z - place.first.z), min(SEEN_Y, size.y - place.first.y),
                       min(SEEN_X, size.x - place.first.x)};
    const long long plane = (long long)size.y * size.x;
    const uint4* source = image + (long long)place.item * CHUNKS * 2 * PARTS * size.z * plane +
                          place.first.z * plane + (long long)place.first.y * size.x +
                          place.first.x;
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      wait(ring.freed(), ring.phase ^ 1);
      const unsigned chunk_target = target + ring.place * IMAGE_BYTES;
#pragma unroll 2
      for (int i = threadIdx.x % 128; i < IMAGE_BYTES / VOXEL; i += 32 * IMAGE_WARPS) {
        const int x = i % SEEN_X, y = i / SEEN_X % SEEN_Y, z = i / SEEN_X / SEEN_Y % SEEN_Z;
        const int group = i / SEEN_X / SEEN_Y / SEEN_Z;
        if (z < seen.z && y < seen.y && x < seen.x)
          copy_voxel(chunk_target + i * VOXEL,
                     source + (group * size.z + z) * plane + (y * size.x + x));
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      publish_to_tensor_cores();
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(ring.filled());
      ring.next();
      source += 2 * PARTS * size.z * plane;
    }
  }
}

// Brings weights, stage after stage; if there is room for all, once.
__device__ __forceinline__ void bring_weights(const char* weights, long long first,
                                              long long count, int passes, unsigned target,
                                              Ring<STAGES> ring) {
  constexpr int ALL = CHUNKS * CHUNK_STAGES;
  if (threadIdx.x % 32) return;
  for (long long index = first; index < count; index += gridDim.x) {
    const char* source = weights + index % passes * ALL * (long long)STAGE_BYTES;
#pragma unroll 1
    for (int stage = 0; stage < ALL; ++stage) {
      wait(ring.freed(), ring.phase ^ 1);
      arrive_expecting(ring.filled(), STAGE_BYTES);
      copy(target + ring.place * STAGE_BYTES, source + stage * STAGE_BYTES, STAGE_BYTES,
           ring.filled());
      ring.next();
    }
    if (KEEP_WEIGHTS) return;
  }
}

// Makes the products of a stage: each tap with all voxels of the warpgroup.
__device__ __forceinline__ void multiply_stage(float (&sum)[TILES][COLUMNS / 2], unsigned left,
                                               unsigned right, bool first) {
  const auto a_first = descriptor(left, GROUP_BYTES, SEEN_X * VOXEL);
  const auto b_first = descriptor(right, COLUMNS * VOXEL, ROWS * VOXEL);
#pragma unroll
  for (int tap = 0; tap < TAPS_Z * TAPS_Y * TAPS_X; ++tap) {
    const int z = tap / TAPS_X / TAPS_Y, y = tap / TAPS_X % TAPS_Y, x = tap % TAPS_X;
    // High parts with high ones, low ones with high ones, high ones with low ones. Products of low
    // parts with low ones are below the rounding.
#pragma unroll
    for (int term = 0; term < (PARTS == 2 ? 3 : 1); ++term) {
      const int b = (tap * TAP_BYTES + (term == 2 ? RIGHT_BYTES : 0)) >> 4;
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const int row = (z + tile / TILES_X / TILES_Y) * SEEN_Y + y +
                        tile / TILES_X % TILES_Y * ROWS;
        const int voxel = row * SEEN_X + x + tile % TILES_X * ROWS;
        const int a = (voxel * VOXEL + (term == 1 ? PART_BYTES : 0)) >> 4;
        multiply_add(sum[tile], a_first + a, b_first + b, tap + term > 0 || !first);
      }
    }
  }
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
                                      long long item_stride, long long map_stride, int maps,
                                      Vec3 size, const Place& place, int warpgroup,
                                      const float* factors, const float* bias, float scale) {
  const int lane = threadIdx.x % 32;
  const int z = place.first.z + warpgroup * TILES_Z;
  const int row = place.first.y + threadIdx.x % 128 / 32 * 2;
  const int x = place.first.x + lane / 4 + lane % TILES_X * ROWS;
  const int first_map = place.pass * COLUMNS + lane % 4 / TILES_X * TILES_X * 2;
  y += place.item * item_stride + first_map * map_stride;
  constexpr int LINES = 2 * TILES / TILES_X;
  int voxel[LINES];
  unsigned inside = 0;
#pragma unroll
  for (int i = 0; i < LINES; ++i) {
    const int at_z = z + i / 2 / TILES_Y;
    const int at_y = row + i / 2 % TILES_Y * ROWS + i % 2;
    voxel[i] = (at_z * size.y + at_y) * size.x + x;
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
        store_if(stored & 1u << i, y + voxel[i], activation(fmaf(value, factor, offset)));
      }
      y += map + 1 < 2 * TILES_X ? map_stride : (ROWS - 2 * TILES_X + 1) * map_stride;
      asm("" : "+l"(y));  // makes each address one addition
    }
  }
}

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS + 128, 1)
    convolve(const uint4* image, int in_z, int in_y, int in_x, const char* weights,
             const float* factors, const float* bias, const unsigned* largest, float* y,
             long long item_stride, long long map_stride, int maps, int out_z, int out_y,
             int out_x, int passes, int tiles_z, int tiles_y, int tiles_x, int first_x,
             long long count) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) unsigned long long barriers[4 + 2 * STAGES];
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
  const unsigned image_shared = shared_address(shared);
  const unsigned weights_shared = image_shared + 2 * IMAGE_BYTES;
  Ring<2> images(shared_address(barriers));
  Ring<STAGES> stages(shared_address(barriers + 4));
  const Vec3 tiles = {tiles_z, tiles_y, tiles_x};

  if (threadIdx.x < 2 + STAGES) {
    const bool of_images = threadIdx.x < 2;
    const int place = of_images ? threadIdx.x : 2 + threadIdx.x;
    init_barrier(shared_address(barriers + place), of_images ? IMAGE_WARPS : 1);
    init_barrier(shared_address(barriers + place + (of_images ? 2 : STAGES)), 4 * WARPGROUPS);
    publish_to_tensor_cores();
  }
  __syncthreads();

  if (warpgroup == WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp % 4 < IMAGE_WARPS)
      bring_image(image, {in_z, in_y, in_x}, blockIdx.x, count, passes, tiles, first_x,
                  image_shared, images);
    else
      bring_weights(weights, blockIdx.x, count, passes, weights_shared, stages);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const bool elected = threadIdx.x % 32 == 0;
  const float scale = 1.0f / scale_for(*largest);
  const unsigned seen = image_shared + warpgroup * TILES_Z * SEEN_Y * SEEN_X * VOXEL;
  for (long long index = blockIdx.x; index < count; index += gridDim.x) {
    float sum[TILES][COLUMNS / 2];
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      wait(images.filled(), images.phase);
      for (int stage = 0; stage < CHUNK_STAGES; ++stage) {
        wait(stages.filled(), KEEP_WEIGHTS ? 0 : stages.phase);
        const int z = stage / STAGES_X / STAGES_Y * TAPS_Z;
        const int row = z * SEEN_Y + stage / STAGES_X % STAGES_Y * TAPS_Y;
        const int voxel = row * SEEN_X + stage % STAGES_X * TAPS_X;
        begin_products();
        multiply_stage(sum, seen + images.place * IMAGE_BYTES + voxel * VOXEL,
                       weights_shared + stages.place * STAGE_BYTES, chunk + stage == 0);
        commit_products();
        wait_for_products();
        if (!KEEP_WEIGHTS && elected) arrive(stages.freed());
        stages.next();
      }
      if (elected) arrive(images.freed());
      images.next();
    }
    store(sum, y, item_stride, map_stride, maps, {out_z, out_y, out_x},
          place_of(index, passes, tiles, first_x), warpgroup, factors, bias, scale);
  }
}
