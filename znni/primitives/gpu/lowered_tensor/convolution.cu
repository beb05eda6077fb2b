// Convolution of few output maps: products of tensor cores first, sums of taps after them.
//
// The left side of a product is 64 voxels of the input x 16 maps, from registers. The right side is
// the weights of these maps x all taps and output maps, which stay in shared memory. So each number
// of the input is read once, and multiplied once for all taps. The products of a voxel belong to
// the outputs around it.
//
// A block takes a tile of voxels along y and x through the planes. A thread keeps in registers its
// voxels' sums for all KERNEL_Z output planes that an input plane adds to: one set for each. With
// each plane one set is complete, and begins anew. The sets stay in their registers, and the
// weights turn instead: they lie in a cycle, of which each product takes KERNEL_Z sets. In a
// complete set the taps of a plane remain to be added, each from the voxel that it saw. This goes
// through shared memory.
//
// A warp copies the voxels that it will read itself, RING - 1 units of 16 maps ahead, those of a
// row side by side. So it waits for no other warp, and asks for each sector of memory once.
//
// Sizes are macros (see geometry.py). `activation` comes from common/activation.py, products come
// from common/wgmma.cuh, and `Left` comes from the file of the number format.

typedef long long Index;

constexpr int THREADS = WARPGROUPS * 128;
constexpr int WARP_ROWS = 16;  // of a product's 64, which are voxels
constexpr int WARP_VOXELS = PRODUCTS * WARP_ROWS;
constexpr int VOXELS = WARPGROUPS * 4 * WARP_VOXELS;  // of a tile
constexpr int UNIT_MAPS = 16;
constexpr int UNITS = (IN_MAPS + UNIT_MAPS - 1) / UNIT_MAPS;
constexpr int SUMS = KERNEL_Y * KERNEL_X * OUT_MAPS;  // of a voxel for an output plane
constexpr int SET = (SUMS + 7) / 8 * 8;               // columns
constexpr int OF_SET = SET / 2;                       // sums of a thread
constexpr int PITCH = VOXELS + 4;                     // voxels and pairs of sums: all banks
constexpr int VALUES = 8;                             // of a unit for a product: 4 maps of 2 voxels
constexpr int UNIT_BYTES = UNIT_MAPS * WARP_VOXELS * 4;  // of a warp
constexpr int COPIED_MAPS = 32 / WARP_VOXELS;            // by a warp at a time: one or two
constexpr int WEIGHTS_BYTES = UNITS * 2 * RIGHT * 16;
static_assert(PRODUCTS <= 2, "a thread copies from one voxel, and stores one at most");
static_assert(RING - 1 <= UNITS, "units are brought a plane ahead at most");

__device__ __forceinline__ float word(unsigned shared) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(shared) : "memory");
  return value;
}

// Applies the activation to a voxel's sums, or softmax to all of them.
__device__ __forceinline__ void finish(float (&total)[OUT_MAPS]) {
#if SOFTMAX
  float top = total[0], all = 0.0f;
#pragma unroll
  for (int map = 1; map < OUT_MAPS; ++map) top = fmaxf(top, total[map]);
#pragma unroll
  for (int map = 0; map < OUT_MAPS; ++map) all += total[map] = expf(total[map] - top);
#pragma unroll
  for (int map = 0; map < OUT_MAPS; ++map) total[map] /= all;
#else
#pragma unroll
  for (int map = 0; map < OUT_MAPS; ++map) total[map] = activation(total[map]);
#endif
}

// Adds up the taps of a plane for an output voxel, each from the voxel that it saw.
__device__ __forceinline__ void add_taps(float (&total)[OUT_MAPS], const float* seen, int tile_x,
                                         const float* __restrict__ bias) {
#pragma unroll
  for (int map = 0; map < OUT_MAPS; ++map) total[map] = __ldg(bias + map);
#pragma unroll
  for (int y = 0; y < KERNEL_Y; ++y)
#pragma unroll
    for (int x = 0; x < KERNEL_X; ++x)
#pragma unroll
      for (int map = 0; map < OUT_MAPS; ++map)
        total[map] += seen[((y * KERNEL_X + x) * OUT_MAPS + map) * PITCH + y * tile_x + x];
}

// in: (image, IN_MAPS, z, y, x) by strides; out: (image, OUT_MAPS, z, y, x), contiguous. weights:
// as weights.py lays them out; bias: (OUT_MAPS). Blocks: tile x, tile y, `planes` output planes,
// image.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    convolve(const float* __restrict__ in, Index stride_n, Index stride_f, Index stride_z,
             Index stride_y, int in_y, int in_x, float* __restrict__ out, int out_z, int out_y,
             int out_x, const uint4* __restrict__ weights, const float* __restrict__ bias,
             int tile_y, int tile_x, int tiles_y, int tiles_x, int planes, int segments) {
  extern __shared__ __align__(128) char shared[];
  float* stage = (float*)(shared + WEIGHTS_BYTES + WARPGROUPS * 4 * RING * UNIT_BYTES);
  const int thread = threadIdx.x, lane = thread % 32;
  const int warp_voxel = thread / 32 * WARP_VOXELS;

  for (int i = thread; i < WEIGHTS_BYTES / 16; i += THREADS) ((uint4*)shared)[i] = weights[i];
  publish_to_tensor_cores();

  unsigned block = blockIdx.x;
  const int first_x = block % tiles_x * (tile_x - KERNEL_X + 1);
  block /= tiles_x;
  const int first_y = block % tiles_y * (tile_y - KERNEL_Y + 1);
  block /= tiles_y;
  const int first_z = block % segments * planes;
  const Index item = block / segments;
  planes = min(planes, out_z - first_z) + KERNEL_Z - 1;  // of the input

  // The place in a plane of the voxel that the thread copies from. Voxels beyond the plane add to
  // no output that is stored, so any voxel will do for them.
  const int from = warp_voxel + lane % WARP_VOXELS;
  in += item * stride_n + first_z * stride_z + lane / WARP_VOXELS * stride_f +
        min(first_y + from / tile_x, in_y - 1) * stride_y + min(first_x + from % tile_x, in_x - 1);

  // The thread's voxel of the output, in its plane; -1 if it has none.
  const int of_tile_y = thread / tile_x, of_tile_x = thread % tile_x;
  const int y = first_y + of_tile_y, x = first_x + of_tile_x;
  const bool stores = thread < VOXELS && of_tile_y <= tile_y - KERNEL_Y &&
                      of_tile_x <= tile_x - KERNEL_X && y < out_y && x < out_x;
  const int own = stores ? y * out_x + x : -1;
  const Index out_plane = Index(out_y) * out_x, map_size = out_z * out_plane;
  out += item * OUT_MAPS * map_size + first_z * out_plane;

  // In shared memory a unit is (map, voxel). Bits of the map are mixed into those of the voxel, so
  // that lanes that read four maps of a voxel read from all banks.
  const unsigned ring = shared_address(shared + WEIGHTS_BYTES) + thread / 32 * RING * UNIT_BYTES;
  const int quad = lane % 4, turned = COPIED_MAPS == 2 ? quad / 2 * 8 : quad * 8;
  const unsigned reading = ring + (quad * WARP_VOXELS + (lane / 4 | turned)) * 4;
  const unsigned writing = ring + lane * 4;
  int brought = 0, read = 0;  // places in the ring of the next unit to bring and to read
  const auto bring = [&](int plane, int unit) {
    if (plane < planes) {
      const float* source = in + plane * stride_z;
      const unsigned target = writing + brought * UNIT_BYTES;
#pragma unroll
      for (int i = 0; i < VALUES * PRODUCTS; ++i) {
        const int first = i * COPIED_MAPS, map = unit * UNIT_MAPS + first;
        const bool present = map + COPIED_MAPS <= IN_MAPS || map + lane / WARP_VOXELS < IN_MAPS;
        const float* number = source + map * stride_f;
        const int turned = COPIED_MAPS == 2 ? first / 2 % 2 * 8 : first % 4 * 8;
        copy_word_or_zero((target ^ turned * 4) + i * 128, present ? number : in, present);
      }
    }
    commit_copies();
    brought = brought + 1 == RING ? 0 : brought + 1;
  };
#pragma unroll
  for (int i = 0; i < RING - 1; ++i) bring(i / UNITS, i % UNITS);
  __syncthreads();

  float sum[PRODUCTS][KERNEL_Z * OF_SET];
#pragma unroll
  for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
    for (int i = 0; i < KERNEL_Z * OF_SET; ++i) sum[product][i] = 0.0f;

#pragma unroll 1
  for (int turn = 0; turn < planes; turn += KERNEL_Z) {
#pragma unroll
    for (int phase = 0; phase < KERNEL_Z; ++phase) {
      const int plane = turn + phase;
      if (plane >= planes) break;
      const int begins = phase * OF_SET, completes = (phase + 1) % KERNEL_Z * OF_SET;
      const auto right = descriptor(shared_address(shared) + (KERNEL_Z - 1 - phase) * SET * 16,
                                    RIGHT * 8, 8 * 16);  // matrices lie one after the other
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product)
#pragma unroll
        for (int i = 0; i < OF_SET; ++i) sum[product][begins + i] = 0.0f;
#pragma unroll
      for (int unit = 0; unit < UNITS; ++unit) {
        wait_for_copies<RING - 2>();
        __syncwarp();
        const unsigned values = reading + read * UNIT_BYTES;
        read = read + 1 == RING ? 0 : read + 1;
#pragma unroll
        for (int product = 0; product < PRODUCTS; ++product) {
          float value[VALUES];
#pragma unroll
          for (int i = 0; i < VALUES; ++i) {
            const int voxel = product * WARP_ROWS + i % 2 * 8;
            value[i] = word((values ^ voxel * 4) + i / 2 * 4 * WARP_VOXELS * 4);
          }
          Left left;
          wait_for_products();
          left.set(value);
          begin_products();
          left.multiply_add_to(sum[product], right + unit * 2 * RIGHT);
          commit_products();
        }
        const int ahead = unit + RING - 1;
        bring(plane + ahead / UNITS, ahead % UNITS);
      }
      wait_for_products();
      if (plane < KERNEL_Z - 1) continue;
      __syncthreads();  // all threads have read the sums of the previous plane
#pragma unroll
      for (int product = 0; product < PRODUCTS; ++product) {
        float* sums = stage + quad * 2 * PITCH + warp_voxel + product * WARP_ROWS + lane / 4;
#pragma unroll
        for (int i = 0; i < OF_SET; ++i) {
          const int column = i / 4 * 8 + i % 2;
          if (column + 6 < SUMS || column + quad * 2 < SUMS)
            sums[column * PITCH + i % 4 / 2 * 8] = sum[product][completes + i];
        }
      }
      __syncthreads();
      if (own >= 0) {
        float total[OUT_MAPS];
        add_taps(total, stage + thread, tile_x, bias);
        finish(total);
        float* target = out + (plane - KERNEL_Z + 1) * out_plane + own;
#pragma unroll
        for (int map = 0; map < OUT_MAPS; ++map) target[map * map_size] = total[map];
      }
    }
  }
}
