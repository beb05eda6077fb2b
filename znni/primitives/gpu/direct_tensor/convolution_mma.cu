// Direct convolution by products of warps on the tensor cores of every GPU since Ampere.
//
// The warps that sum also bring image and weights, by asynchronous copies: those of some stages
// ahead, and the next 16 maps of the image if there is a second place for them. Each warp has 16
// rows of a warpgroup's products: its fragments of the weights serve all of its TILES products.
// Functions for tensor cores come from common/mma.cuh, all else from convolution.cuh.

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int EIGHTS = COLUMNS / 8;

// A chunk of 16 input maps of the voxels that a block sees.
struct Seen {
  const uint4* source;
  Vec3 size;  // of the part that lies in the image
};

__device__ __forceinline__ Seen seen_by(const uint4* image, Vec3 size, const Place& place) {
  const long long plane = (long long)size.y * size.x;
  return {image + (long long)place.item * ALL_CHUNKS * 2 * PARTS * size.z * plane +
              place.first.z * plane + (long long)place.first.y * size.x + place.first.x,
          {min(SEEN_Z, size.z - place.first.z), min(SEEN_Y, size.y - place.first.y),
           min(SEEN_X, size.x - place.first.x)}};
}

// Starts to bring a chunk. Voxels beyond the image are left as they are: no output that depends on
// them is stored.
__device__ __forceinline__ void bring_image(unsigned target, const Seen& seen, int chunk,
                                            Vec3 size) {
  const long long plane = (long long)size.y * size.x;
  const uint4* source = seen.source + chunk * (2 * PARTS * size.z * plane);
#pragma unroll 2
  for (int i = threadIdx.x; i < IMAGE_BYTES / VOXEL; i += THREADS) {
    const int x = i % SEEN_X, y = i / SEEN_X % SEEN_Y, z = i / SEEN_X / SEEN_Y % SEEN_Z;
    const int group = i / SEEN_X / SEEN_Y / SEEN_Z;
    if (z < seen.size.z && y < seen.size.y && x < seen.size.x)
      copy_16_bytes(target + i * VOXEL,
                    source + (group * size.z + z) * plane + (y * size.x + x));
  }
}

// Starts to bring the weights of a stage.
__device__ __forceinline__ void bring_weights(unsigned target, const char* source) {
#pragma unroll 2
  for (int i = threadIdx.x; i < STAGE_BYTES / VOXEL; i += THREADS)
    copy_16_bytes(target + i * VOXEL, source + i * VOXEL);
}

// Makes the products of a stage: each tap with all voxels of the warp. `left` and `right` are the
// rows of matrices whose addresses the lane gives.
__device__ __forceinline__ void multiply_stage(float (&sum)[TILES][COLUMNS / 2], unsigned left,
                                               unsigned right) {
#pragma unroll 1  // more would take too many registers
  for (int tap = 0; tap < TAPS_Z * TAPS_Y * TAPS_X; ++tap) {
    const int z = tap / TAPS_X / TAPS_Y, y = tap / TAPS_X % TAPS_Y, x = tap % TAPS_X;
    // High parts of weights with high and low ones of the image, low ones with high ones. Products
    // of low parts with low ones are below the rounding.
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      unsigned weights[EIGHTS][2];
#pragma unroll
      for (int eight = 0; eight < EIGHTS; eight += 2) {
        const unsigned row = right + tap * TAP_BYTES + part * RIGHT_BYTES + eight * 8 * VOXEL;
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
#pragma unroll 1
      for (int of_image = 0; of_image < PARTS - part; ++of_image) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          const int row = (z + tile / TILES_X / TILES_Y) * SEEN_Y + y +
                          tile / TILES_X % TILES_Y * ROWS;
          const int voxel = row * SEEN_X + x + tile % TILES_X * ROWS;
          unsigned voxels[4];
          load_matrices(voxels, left + voxel * VOXEL + of_image * PART_BYTES);
#pragma unroll
          for (int eight = 0; eight < EIGHTS; ++eight)
            multiply_add(&sum[tile][4 * eight], voxels, weights[eight][0], weights[eight][1], true);
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve(const uint4* image, int in_z, int in_y, int in_x, const char* weights,
             const float* factors, const float* bias, const unsigned* largest, float* y,
             long long item_stride, long long map_stride, int maps, int out_z, int out_y,
             int out_x, int passes, int tiles_z, int tiles_y, int tiles_x, int first_x,
             long long count) {
  extern __shared__ __align__(128) char shared[];
  constexpr int ALL = CHUNKS * CHUNK_STAGES;
  const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const unsigned image_shared = shared_address(shared);
  const unsigned weights_shared = image_shared + IMAGE_PLACES * IMAGE_BYTES;
  const Vec3 tiles = {tiles_z, tiles_y, tiles_x}, size = {in_z, in_y, in_x};
  const float scale = 1.0f / scale_for(*largest);

  // The rows of matrices whose addresses the lane gives: of the left side, two rows of voxels and
  // two groups of maps; of the right side, two groups of maps and two times 8 columns.
  const int matrix = lane / 8;
  const unsigned left = image_shared + matrix / 2 * GROUP_BYTES +
                        ((warpgroup * TILES_Z * SEEN_Y + 2 * warp + matrix % 2) * SEEN_X +
                         lane % 8) * VOXEL;
  const unsigned right =
      weights_shared + (matrix % 2 * COLUMNS + matrix / 2 * 8 + lane % 8) * VOXEL;

  long long index = blockIdx.x;
  Place place = place_of(index, passes, tiles, first_x);
  Seen seen = seen_by(image, size, place);
  const auto stage_of = [&](long long block, int stage) {
    return weights + (block % passes * ALL_CHUNKS * CHUNK_STAGES + stage) * STAGE_BYTES;
  };

  // The stage that is brought next: of which block, and where its place is. With every turn a group
  // of copies is committed, even if it is empty.
  long long ahead_index = index;
  int ahead_stage = 0, ahead_place = 0;
  const auto bring_next_weights = [&]() {
    if (ahead_index >= count) return;
    bring_weights(weights_shared + ahead_place * STAGE_BYTES, stage_of(ahead_index, ahead_stage));
    ahead_place = ahead_place + 1 == STAGES ? 0 : ahead_place + 1;
    if (++ahead_stage == ALL) {
      ahead_stage = 0;
      ahead_index += gridDim.x;
    }
  };

  bring_image(image_shared, seen, 0, size);
  if (KEEP_WEIGHTS) {
    for (int stage = 0; stage < ALL; ++stage) bring_next_weights();
    commit_copies();
  } else {
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
      bring_next_weights();
      commit_copies();
    }
  }

  int image_place = 0, weights_place = 0;
  while (index < count) {
    float sum[TILES][COLUMNS / 2];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) sum[tile][i] = 0.0f;
    const long long next_index = index + gridDim.x;
    const Place own = place;
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      const bool goes_on = chunk + 1 < CHUNKS || next_index < count;
      const int next_chunk = chunk + 1 < CHUNKS ? chunk + 1 : 0;
      if (chunk + 1 == CHUNKS && goes_on) {
        place = place_of(next_index, passes, tiles, first_x);
        seen = seen_by(image, size, place);
      }
      for (int stage = 0; stage < CHUNK_STAGES; ++stage) {
        if (stage == 0) {
          // The image was brought in the first turn of the chunk before, or after its last one.
          constexpr int TURNS_SINCE = IMAGE_PLACES == 2 ? CHUNK_STAGES - 1 : 0;
          constexpr int LEFT = STAGES - 2 < TURNS_SINCE ? STAGES - 2 : TURNS_SINCE;
          wait_for_copies<KEEP_WEIGHTS ? 0 : LEFT>();
          __syncthreads();
          if (IMAGE_PLACES == 2 && goes_on)
            bring_image(image_shared + (1 - image_place) * IMAGE_BYTES, seen, next_chunk, size);
        } else if (!KEEP_WEIGHTS) {
          wait_for_copies<STAGES - 2>();
          __syncthreads();
        }
        if (!KEEP_WEIGHTS) bring_next_weights();
        if (!KEEP_WEIGHTS || stage == 0) commit_copies();
        const int z = stage / STAGES_X / STAGES_Y * TAPS_Z;
        const int row = z * SEEN_Y + stage / STAGES_X % STAGES_Y * TAPS_Y;
        const int voxel = row * SEEN_X + stage % STAGES_X * TAPS_X;
        multiply_stage(sum, left + image_place * IMAGE_BYTES + voxel * VOXEL,
                       right + weights_place * STAGE_BYTES);
        weights_place = weights_place + 1 == STAGES ? 0 : weights_place + 1;
      }
      if (IMAGE_PLACES == 2) {
        image_place = 1 - image_place;
      } else if (goes_on) {
        __syncthreads();  // all warps have read the place
        bring_image(image_shared, seen, next_chunk, size);
        commit_copies();
      }
    }
    store(sum, y, item_stride, map_stride, maps, {out_z, out_y, out_x}, own, warpgroup, factors,
          bias, scale);
    index = next_index;
  }
}
