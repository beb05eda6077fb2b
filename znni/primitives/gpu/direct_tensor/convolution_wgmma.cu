// Direct convolution by products of warpgroups on Hopper's tensor cores.
//
// One warpgroup brings image and weights, ahead of two others that sum. Products come from
// common/wgmma.cuh, all else from convolution.cuh.

constexpr int IMAGE_WARPS = 3;  // of the warpgroup that brings; the fourth brings weights
constexpr int IMAGE_THREADS = 32 * IMAGE_WARPS;

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

// Copies a voxel of a group, or zeros.
__device__ __forceinline__ void copy_voxel(unsigned target, const uint4* source, bool present) {
  if (READS_PACKED && IMAGE_GROUPS % 2)
    copy_16_bytes_or_zeros(target, source, present);
  else
    copy_16_bytes(target, source);
}

// Arrives at a barrier when all copies that the thread has started are done. Meanwhile it goes on.
__device__ __forceinline__ void arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
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

// The places and passes of a block: one pass of every few, or all passes of a place, if the image is
// kept for them (KEEP_IMAGE).
__device__ __forceinline__ long long first_of_block(int passes) {
  return (long long)blockIdx.x * (KEEP_IMAGE ? passes : 1);
}

__device__ __forceinline__ bool is_last_of_image(long long index, int passes) {
  return !KEEP_IMAGE || (index + 1) % passes == 0;
}

__device__ __forceinline__ long long next_of_block(long long index, int passes) {
  if (!KEEP_IMAGE) return index + gridDim.x;
  return index + 1 + (is_last_of_image(index, passes) ? (gridDim.x - 1ll) * passes : 0);
}

// Brings the voxels that blocks see, 16 maps after 16, and shift after shift.
__device__ __forceinline__ void bring_image(const uint4* image, Vec3 size,
                                            const ImageStrides& strides, long long count,
                                            int passes, Vec3 tiles, int first_x, unsigned target,
                                            Ring<IMAGE_PLACES> ring) {
  const long long step = (long long)gridDim.x * (KEEP_IMAGE ? passes : 1);
  for (long long index = first_of_block(passes); index < count; index += step) {
    const View view = view_of(image, size, strides, place_of(index, passes, tiles, first_x));
    const uint4* source = view.first;
#pragma unroll 1
    for (int part = 0; part < CHUNKS * SHIFTS; ++part) {
      const int chunk = part / SHIFTS, shift = part % SHIFTS;
      wait(ring.freed(), ring.phase ^ 1);
      bring_voxels(target + ring.place * IMAGE_BYTES, view, source, strides, chunk, shift,
                   threadIdx.x % 128, IMAGE_THREADS, copy_voxel);
      arrive_after_copies(ring.filled());
      ring.next();
      if (shift + 1 == SHIFTS) source += 2 * PARTS * strides.group;
    }
  }
}

// Brings weights, stage after stage; if there is room for those of all passes, once.
__device__ __forceinline__ void bring_weights(const char* weights, long long count, int passes,
                                              unsigned target, Ring<STAGES> ring) {
  constexpr int ALL = CHUNKS * CHUNK_STAGES;
  if (threadIdx.x % 32) return;
  for (long long index = first_of_block(passes); index < count;
       index = next_of_block(index, passes)) {
    const char* source =
        weights + index % passes * ALL_CHUNKS * CHUNK_STAGES * (long long)STAGE_BYTES;
#pragma unroll 1
    for (int stage = 0; stage < ALL; ++stage) {
      wait(ring.freed(), ring.phase ^ 1);
      arrive_expecting(ring.filled(), STAGE_BYTES);
      copy(target + ring.place * STAGE_BYTES, source + stage * STAGE_BYTES, STAGE_BYTES,
           ring.filled());
      ring.next();
    }
    if (KEEP_WEIGHTS && is_last_of_image(index, passes)) return;
  }
}

// Terms of a product: high parts with high ones, low ones with high ones, high ones with low ones.
// Products of low parts with low ones are below the rounding.
constexpr int TERMS = PARTS == 2 ? 3 : 1;

#if STACKS_TAPS
constexpr int PLANES = TILES + TAPS_Z - 1;  // that all taps of a stage see along z

// The sums of each plane of voxels with each tap along z.
typedef float Sums[PLANES][TAPS_Z * COLUMNS / 2];

// Multiplies a plane of voxels with all taps along z by which it counts for an output, in one product.
// Reading the voxels for each tap would take longer than products of few columns. Then does so with
// the planes after it.
template <int PLANE>
__device__ __forceinline__ void multiply_planes(Sums& sums, Side a, Side b, bool add) {
  constexpr int FIRST_TAP = PLANE < TILES ? 0 : PLANE - TILES + 1;
  constexpr int LAST_TAP = PLANE < TAPS_Z ? PLANE : TAPS_Z - 1;
  constexpr int COUNT = (LAST_TAP - FIRST_TAP + 1) * COLUMNS / 2;
  multiply_add(reinterpret_cast<float(&)[COUNT]>(sums[PLANE][FIRST_TAP * COLUMNS / 2]),
               a + (PLANE * SEEN_Y * SEEN_X * VOXEL >> 4), b + (FIRST_TAP * COLUMNS * VOXEL >> 4), add);
  if constexpr (PLANE + 1 < PLANES) multiply_planes<PLANE + 1>(sums, a, b, add);
}

// Makes the products of a stage, which has all taps along z. The weights of these are side by side.
__device__ __forceinline__ void multiply_stage(Sums& sums, unsigned left, unsigned right,
                                               bool first) {
  constexpr int STACKED = TAPS_Z * COLUMNS * VOXEL;
  const auto a_first = descriptor(left, GROUP_BYTES, SEEN_X * VOXEL);
  const auto b_first = descriptor(right, STACKED, ROWS * VOXEL);
#pragma unroll
  for (int tap = 0; tap < TAPS_Y * TAPS_X; ++tap) {
    const int voxel = tap / TAPS_X * SEEN_X + along_row(tap % TAPS_X);
#pragma unroll
    for (int term = 0; term < TERMS; ++term) {
      const int a = (voxel * VOXEL + (term == 1 ? PART_BYTES : 0)) >> 4;
      const int b = (tap * PARTS + (term == 2 ? 1 : 0)) * 2 * STACKED >> 4;
      multiply_planes<0>(sums, a_first + a, b_first + b, tap + term > 0 || !first);
    }
  }
}

// Adds up the sums of all taps along z.
__device__ __forceinline__ void add_taps(float (&sum)[TILES][COLUMNS / 2], const Sums& sums) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) {
      sum[tile][i] = sums[tile][i];
#pragma unroll
      for (int z = 1; z < TAPS_Z; ++z) sum[tile][i] += sums[tile + z][z * COLUMNS / 2 + i];
    }
}
#else
typedef float Sums[TILES][COLUMNS / 2];

// All taps have the same sums already.
__device__ __forceinline__ void add_taps(Sums& sum, const Sums& sums) {}

// Makes the products of a stage: each tap with all voxels of the warpgroup.
__device__ __forceinline__ void multiply_stage(Sums& sum, unsigned left, unsigned right,
                                               bool first) {
  const auto a_first = descriptor(left, GROUP_BYTES, SEEN_X * VOXEL);
  const auto b_first = descriptor(right, COLUMNS * VOXEL, ROWS * VOXEL);
#pragma unroll
  for (int tap = 0; tap < TAPS_Z * TAPS_Y * TAPS_X; ++tap) {
    const int z = tap / TAPS_X / TAPS_Y, y = tap / TAPS_X % TAPS_Y, x = tap % TAPS_X;
#pragma unroll
    for (int term = 0; term < TERMS; ++term) {
      const int b = (tap * TAP_BYTES + (term == 2 ? RIGHT_BYTES : 0)) >> 4;
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const int row = (z + tile / TILES_X / TILES_Y) * SEEN_Y + y +
                        tile / TILES_X % TILES_Y * ROWS;
        const int voxel = row * SEEN_X + along_row(x) + tile % TILES_X * ROWS;
        const int a = (voxel * VOXEL + (term == 1 ? PART_BYTES : 0)) >> 4;
        multiply_add(sum[tile], a_first + a, b_first + b, tap + term > 0 || !first);
      }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS + 128, 1)
    convolve(const uint4* image, int in_z, int in_y, int in_x, IMAGE_STRIDES const char* weights,
             const float* factors, const float* bias, const unsigned* largest, OUTPUT* y,
             long long item_stride, long long map_stride, long long plane_stride,
             long long row_stride, int maps, int out_z, int out_y,
             int out_x, int passes, int tiles_z, int tiles_y, int tiles_x, int first_x,
             long long count MADE_RECORDS MAP_SUMS OTHER_RECORDS) {
  extern __shared__ __align__(128) char shared[];
  __shared__ __align__(8) unsigned long long barriers[2 * IMAGE_PLACES + 2 * STAGES + WARPGROUPS];
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int warpgroup = warp / 4;
  const unsigned image_shared = shared_address(shared);
  const unsigned weights_shared = image_shared + IMAGE_PLACES * IMAGE_BYTES;
  Ring<IMAGE_PLACES> images(shared_address(barriers));
  Ring<STAGES> stages(shared_address(barriers + 2 * IMAGE_PLACES));
  const Vec3 tiles = {tiles_z, tiles_y, tiles_x}, size = {in_z, in_y, in_x};
#if READS_PACKED
  const ImageStrides strides = {image_item, image_group / PARTS, image_plane, image_row};
#else
  const ImageStrides strides = strides_of(size);
#endif

  if (threadIdx.x < IMAGE_PLACES + STAGES) {
    const bool of_images = threadIdx.x < IMAGE_PLACES;
    const int place = of_images ? threadIdx.x : IMAGE_PLACES + threadIdx.x;
    init_barrier(shared_address(barriers + place), of_images ? IMAGE_THREADS : 1);
    init_barrier(shared_address(barriers + place + (of_images ? IMAGE_PLACES : STAGES)),
                 4 * WARPGROUPS);
    publish_to_tensor_cores();
  }
  const unsigned turns = shared_address(barriers + 2 * IMAGE_PLACES + 2 * STAGES);
  if (TAKES_TURNS && threadIdx.x < WARPGROUPS) init_barrier(turns + 8 * threadIdx.x, 4);
  __syncthreads();

  if (warpgroup == WARPGROUPS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp % 4 < IMAGE_WARPS)
      bring_image(image, size, strides, count, passes, tiles, first_x, image_shared, images);
    else
      bring_weights(weights, count, passes, weights_shared, stages);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const bool elected = threadIdx.x % 32 == 0;
  float scale = 1.0f / image_scale(largest, 0);
#if WRITES_PACKED
  const float out_scale =
      scale_below(made_bound(largest, weight_sum, most_bias, maps, OTHER, MOST_OF_OTHER));
  float most = 0.0f;
#endif
  const unsigned seen = image_shared + warpgroup * TILES_Z * SEEN_Y * SEEN_X * VOXEL;
  Ring<IMAGE_PLACES> of_first_pass = images;
  unsigned turn = warpgroup == 0;
  for (long long index = first_of_block(passes); index < count;
       index = next_of_block(index, passes)) {
    const bool frees_image = is_last_of_image(index, passes);
    if (KEEP_IMAGE && index % passes) images = of_first_pass;
    of_first_pass = images;
    float sum[TILES][COLUMNS / 2];
#if STACKS_TAPS
    Sums sums;
#else
    Sums& sums = sum;
#endif
#if ADDS_UP
    float all[TILES][COLUMNS / 2];
    clear(all);
#endif
    Place place = place_of(index, passes, tiles, first_x);
#if ADDS_TO_OUTPUT
    prefetch_packed(y, item_stride, map_stride, plane_stride, row_stride, maps,
                    {out_z, out_y, out_x}, place, warpgroup);
#endif
    if (TAKES_TURNS) {
      // Divisions take long: they are done while the other warpgroup has its turn.
      asm volatile("" : "+r"(place.pass), "+r"(place.item), "+r"(place.first.z),
                   "+r"(place.first.y), "+r"(place.first.x));
      wait(turns + 8 * warpgroup, turn);
    }
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      if (JOINED) {
        const float of_chunk = 1.0f / image_scale(largest, chunk);
        if (!ADDS_UP && chunk > 0 && of_chunk != scale) rescale(sums, scale / of_chunk);
        scale = of_chunk;
      }
      for (int shift = 0; shift < SHIFTS; ++shift) {
        wait(images.filled(), images.phase);
        publish_to_tensor_cores();  // threads that bring it do not wait for their copies
        const int of_shift = stages_of(shift);
        for (int stage = 0; stage < of_shift; ++stage) {
          wait(stages.filled(), KEEP_WEIGHTS ? 0 : stages.phase);
          begin_products();
          multiply_stage(sums,
                         seen + images.place * IMAGE_BYTES + first_voxel(stage, shift) * VOXEL,
                         weights_shared + stages.place * STAGE_BYTES,
                         (ADDS_UP ? 0 : chunk) + shift + stage == 0);
          commit_products();
          wait_for_products();
          if (!KEEP_WEIGHTS && elected) arrive(stages.freed());
          stages.next();
        }
        if (elected && frees_image) arrive(images.freed());
        images.next();
      }
#if ADDS_UP
      add_taps(sum, sums);
      add_up(all, sum, JOINED ? scale : 1.0f);
#endif
    }
    if (TAKES_TURNS && elected) arrive(turns + 8 * (1 - warpgroup));
    turn ^= 1;
#if !ADDS_UP
    add_taps(sum, sums);
#endif
#if WRITES_PACKED
    const float stored = store_packed(
        MADE, y, item_stride, map_stride, plane_stride, row_stride, maps, {out_z, out_y, out_x},
        place, warpgroup, factors, bias, SCALE_OF_MADE, out_scale,
        OTHER, sums_of_warp(SUMS_OF_MAPS, index, passes, tiles, maps));
    most = fmaxf(most, stored);
#else
    store(MADE, y, item_stride, map_stride, plane_stride, row_stride, maps, {out_z, out_y, out_x},
          place, warpgroup, factors, bias, SCALE_OF_MADE);
#endif
  }
#if WRITES_PACKED
  note(made, made_bound(largest, weight_sum, most_bias, maps, OTHER, MOST_OF_OTHER), most, maps);
#endif
}
