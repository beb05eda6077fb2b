// Direct convolution by products of warps on the tensor cores of every GPU since Ampere.
//
// The warps that sum also bring image and weights, by asynchronous copies: those of some stages
// ahead, and the next 16 maps of the image if there is a second place for them. Each warp has 16
// rows of a warpgroup's products: its fragments of the weights serve all of its TILES products.
// Products come from common/kernels.py, all else from convolution.cuh.

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int EIGHTS = COLUMNS / 8;

// Starts to bring a chunk at a shift.
__device__ __forceinline__ void bring_image(unsigned target, const View& view, int chunk,
                                            int shift, const ImageStrides& strides) {
  const auto copy = [](unsigned to, const uint4* voxel, bool present) {
    if (READS_PACKED && IMAGE_GROUPS % 2)
      copy_16_bytes_or_zeros(to, voxel, present);
    else
      copy_16_bytes(to, voxel);
  };
  bring_voxels(target, view, view.first + chunk * (2 * PARTS * strides.group), strides, chunk, shift,
               threadIdx.x, THREADS, copy);
}

// Starts to bring the weights of a stage.
__device__ __forceinline__ void bring_weights(unsigned target, const char* source) {
#pragma unroll 2
  for (int i = threadIdx.x; i < STAGE_BYTES / VOXEL; i += THREADS)
    copy_16_bytes(target + i * VOXEL, source + i * VOXEL);
}

// Loads the weights of 16 columns, or of the last 8: two registers for each 8.
__device__ __forceinline__ void load_weights(unsigned (&weights)[EIGHTS][2], int eight,
                                             unsigned right) {
  const unsigned row = right + eight * 8 * VOXEL;
  if (eight + 1 < EIGHTS) {
    unsigned two[4];
    load_matrices(two, row);
    weights[eight][0] = two[0];
    weights[eight][1] = two[1];
    weights[eight + 1][0] = two[2];
    weights[eight + 1][1] = two[3];
  } else {
    load_matrices(weights[eight], row);
  }
}

// Makes the products of a stage: each tap with all voxels of the warp. `left` and `right` are the
// rows of matrices whose addresses the lane gives. Voxels are loaded a product ahead, and weights
// as soon as their registers are free.
__device__ __forceinline__ void multiply_stage(float (&sum)[TILES][COLUMNS / 2], unsigned left,
                                               unsigned right) {
  constexpr int TAPS = TAPS_Z * TAPS_Y * TAPS_X;
  // High parts of weights with high and low ones of the image, low ones with high ones. Products of
  // low parts with low ones are below the rounding.
  constexpr int TERMS = 2 * PARTS - 1;
  unsigned weights[EIGHTS][2], voxels[4], tap_left = left;
#pragma unroll
  for (int eight = 0; eight < EIGHTS; eight += 2) load_weights(weights, eight, right);
  load_matrices(voxels, left);
#pragma unroll 1
  for (int tap = 0; tap < TAPS; ++tap) {
    const int next = tap + 1 < TAPS ? tap + 1 : 0;  // the last one loads what is not used
    const int z = next / TAPS_X / TAPS_Y, y = next / TAPS_X % TAPS_Y, x = next % TAPS_X;
    const unsigned next_left = left + ((z * SEEN_Y + y) * SEEN_X + along_row(x)) * VOXEL;
#pragma unroll
    for (int term = 0; term < TERMS; ++term) {
      const bool last_of_weights = term == TERMS - 1 || term == 1;
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const int after = tile + 1 < TILES ? tile + 1 : 0;
        const int term_after = tile + 1 < TILES ? term : term + 1 < TERMS ? term + 1 : 0;
        const int voxel = (after / TILES_X / TILES_Y * SEEN_Y + after / TILES_X % TILES_Y * ROWS) *
                              SEEN_X + after % TILES_X * ROWS;
        const bool in_tap = tile + 1 < TILES || term + 1 < TERMS;
        unsigned next_voxels[4];
        load_matrices(next_voxels, (in_tap ? tap_left : next_left) + voxel * VOXEL +
                                       (term_after == 1 ? PART_BYTES : 0));
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
          multiply_add(&sum[tile][4 * eight], voxels, weights[eight][0], weights[eight][1], true);
          if (tile + 1 == TILES && last_of_weights && (eight % 2 || eight + 1 == EIGHTS))
            load_weights(weights, eight / 2 * 2,
                         right + (term + 1 < TERMS ? tap * TAP_BYTES + RIGHT_BYTES
                                                   : next * TAP_BYTES));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) voxels[i] = next_voxels[i];
      }
    }
    tap_left = next_left;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve(const uint4* image, int in_z, int in_y, int in_x, IMAGE_STRIDES const char* weights,
             const float* factors, const float* bias, const unsigned* largest, OUTPUT* y,
             long long item_stride, long long map_stride, long long plane_stride,
             long long row_stride, int maps, int out_z, int out_y,
             int out_x, int passes, int tiles_z, int tiles_y, int tiles_x, int first_x,
             long long count MADE_RECORDS MAP_SUMS OTHER_RECORDS) {
  extern __shared__ __align__(128) char shared[];
  constexpr int ALL = CHUNKS * CHUNK_STAGES;
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const unsigned image_shared = shared_address(shared);
  const unsigned weights_shared = image_shared + IMAGE_PLACES * IMAGE_BYTES;
  const Vec3 tiles = {tiles_z, tiles_y, tiles_x}, size = {in_z, in_y, in_x};
#if READS_PACKED
  const ImageStrides strides = {image_item, image_group / PARTS, image_plane, image_row};
#else
  const ImageStrides strides = strides_of(size);
#endif
  float scale = 1.0f / image_scale(largest, 0);
#if WRITES_PACKED
  const float out_scale =
      scale_below(made_bound(largest, weight_sum, most_bias, maps, OTHER, MOST_OF_OTHER));
  float most = 0.0f;
#endif

  // The rows of matrices whose addresses the lane gives: of the left side, two rows of voxels and
  // two groups of maps; of the right side, two groups of maps and two times 8 columns.
  const int matrix = lane / 8;
  const unsigned left = image_shared + matrix / 2 * GROUP_BYTES +
                        ((warpgroup * TILES_Z * SEEN_Y + 2 * warp + matrix % 2) * SEEN_X +
                         lane % 8) * VOXEL;
  const unsigned right =
      weights_shared + (matrix % 2 * COLUMNS + matrix / 2 * 8 + lane % 8) * VOXEL;

  long long index = blockIdx.x;
  View view = view_of(image, size, strides, place_of(index, passes, tiles, first_x));
  // Brings the weights of a stage of a block, or of the next block's first ones. With every turn a
  // group of copies is committed, even if it is empty.
  const auto bring_stage = [&](long long block, int stage, int place) {
    if (stage >= ALL) {
      stage -= ALL;
      block += gridDim.x;
    }
    if (block < count)
      bring_weights(weights_shared + place * STAGE_BYTES,
                    weights + (block % passes * ALL_CHUNKS * CHUNK_STAGES + stage) * STAGE_BYTES);
  };
  bring_image(image_shared, view, 0, 0, strides);
#pragma unroll 1
  for (int stage = 0; stage < STAGES - !KEEP_WEIGHTS; ++stage) {
    bring_stage(index, stage, stage);
    commit_copies();
  }

  int image_place = 0, weights_place = 0;
  while (index < count) {
    float sum[TILES][COLUMNS / 2];
    clear(sum);
#if ADDS_UP
    float all[TILES][COLUMNS / 2];
    clear(all);
#endif
    const long long next_index = index + gridDim.x;
#if ADDS_TO_OUTPUT
    prefetch_packed(y, item_stride, map_stride, plane_stride, row_stride, maps,
                    {out_z, out_y, out_x}, place_of(index, passes, tiles, first_x), warpgroup);
#endif
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      if (JOINED) {
        const float of_chunk = 1.0f / image_scale(largest, chunk);
        if (!ADDS_UP && chunk > 0 && of_chunk != scale) rescale(sum, scale / of_chunk);
        scale = of_chunk;
      }
      int first_stage = chunk * CHUNK_STAGES;
      for (int shift = 0; shift < SHIFTS; ++shift) {
        const bool of_chunk = shift + 1 < SHIFTS, of_block = of_chunk || chunk + 1 < CHUNKS;
        const bool goes_on = of_block || next_index < count;
        const int next_chunk = of_chunk ? chunk : of_block ? chunk + 1 : 0;
        const int next_shift = of_chunk ? shift + 1 : 0;
        if (!of_block && goes_on)
          view = view_of(image, size, strides, place_of(next_index, passes, tiles, first_x));
        const int stages = stages_of(shift);
        for (int stage = 0; stage < stages; ++stage) {
          if (stage == 0) {
            // The image was brought in the first turn of the shift before, or after its last one.
            constexpr int TURNS_SINCE = IMAGE_PLACES == 2 ? FEWEST_STAGES - 1 : 0;
            constexpr int LEFT = STAGES - 2 < TURNS_SINCE ? STAGES - 2 : TURNS_SINCE;
            wait_for_copies<KEEP_WEIGHTS ? 0 : LEFT>();
            __syncthreads();
            if (IMAGE_PLACES == 2 && goes_on)
              bring_image(image_shared + (1 - image_place) * IMAGE_BYTES, view, next_chunk,
                          next_shift, strides);
          } else if (!KEEP_WEIGHTS) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();
          }
          if (!KEEP_WEIGHTS)
            bring_stage(index, first_stage + stage + STAGES - 1,
                        weights_place == 0 ? STAGES - 1 : weights_place - 1);
          if (!KEEP_WEIGHTS || stage == 0) commit_copies();
          multiply_stage(sum,
                         left + image_place * IMAGE_BYTES + first_voxel(stage, shift) * VOXEL,
                         right + weights_place * STAGE_BYTES);
          weights_place = weights_place + 1 == STAGES ? 0 : weights_place + 1;
        }
        first_stage += stages;
        if (IMAGE_PLACES == 2) {
          image_place = 1 - image_place;
        } else if (goes_on) {
          __syncthreads();  // all warps have read the place
          bring_image(image_shared, view, next_chunk, next_shift, strides);
          commit_copies();
        }
      }
#if ADDS_UP
      add_up(all, sum, JOINED ? scale : 1.0f);
      clear(sum);
#endif
    }
#if WRITES_PACKED
    const float stored = store_packed(
        MADE, y, item_stride, map_stride, plane_stride, row_stride, maps, {out_z, out_y, out_x},
        place_of(index, passes, tiles, first_x), warpgroup, factors, bias, SCALE_OF_MADE, out_scale,
        OTHER, sums_of_warp(SUMS_OF_MAPS, index, passes, tiles, maps));
    most = fmaxf(most, stored);
#else
    store(MADE, y, item_stride, map_stride, plane_stride, row_stride, maps, {out_z, out_y, out_x},
          place_of(index, passes, tiles, first_x), warpgroup, factors, bias, SCALE_OF_MADE);
#endif
    index = next_index;
  }
#if WRITES_PACKED
  note(made, made_bound(largest, weight_sum, most_bias, maps, OTHER, MOST_OF_OTHER), most, maps);
#endif
}
