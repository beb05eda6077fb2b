// Convolution of few input maps, pooled plainly over a window, by products of tensor cores.
//
// The left side of a product is 16 output maps x 8 taps. The right side is 8 taps x 8 pooled voxels
// side by side along x. Numbers are tf32. Each position in the window has a sum of its own, and the
// largest of them is kept. A number is one tf32, or the sum of two: then three products make one,
// and sums are as exact as those of float32.
//
// A block keeps the input that it sees in shared memory, and each of its warps computes a row of
// pooled voxels, 16 maps after 16. The maxima go through shared memory too, so that a warp stores
// neighbouring voxels of a map together.
//
// Sizes are macros (see geometry.py). `activation` and `larger` come from common/activation.py.

typedef long long Index;

constexpr int LANES = 32;
constexpr int WARPS = TILE_Z * TILE_Y;
constexpr int PRODUCT_MAPS = 16, PRODUCT_VOXELS = 8;
constexpr int POSITIONS = WINDOW_Z * WINDOW_Y * WINDOW_X;
constexpr int PLANE = SEEN_Y * PITCH;
constexpr int IMAGE = (IN_MAPS * SEEN_Z * PLANE + 1) / 2 * 2;  // pairs of maxima follow
constexpr int MAXIMA_PITCH = TILE_X + PRODUCT_VOXELS;  // four rows of two words a lane: all banks

__device__ __forceinline__ float rounded(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

// Brings the input that a block sees, part after part. Beyond the last plane, row or column any
// value will do, because voxels that see it are not stored.
__device__ __forceinline__ void bring_image(float* image, const float* source, Index stride_f,
                                            Index stride_z, Index stride_y, int last_z, int last_y,
                                            int last_x) {
  const int lane = threadIdx.x % LANES;
#pragma unroll 2
  for (int row = threadIdx.x / LANES; row < IN_MAPS * SEEN_Z * SEEN_Y; row += WARPS) {
    const int y = row % SEEN_Y, z = row / SEEN_Y % SEEN_Z, map = row / SEEN_Y / SEEN_Z;
    const float* values =
        source + map * stride_f + min(z, last_z) * stride_z + min(y, last_y) * stride_y;
#pragma unroll
    for (int first = 0; first < SEEN_X; first += LANES) {
      const int x = first + lane;
      if (x < SEEN_X) {
        const float value = values[min(x, last_x)];
        const float high = rounded(value);
        image[row * PITCH + x] = high;
        if (PARTS == 2) image[IMAGE + row * PITCH + x] = rounded(value - high);
      }
    }
  }
}

__device__ __forceinline__ void multiply_add(float (&sum)[4], const uint4& left, float upper,
                                             float lower) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left.x), "r"(left.y), "r"(left.z), "r"(left.w), "r"(__float_as_uint(upper)),
        "r"(__float_as_uint(lower)));
}

// Computes the sums at all positions in the windows of 8 voxels, for 16 maps. `seen` is the place
// in the image that the lane's voxel sees first; `weights` and `taps` are the lane's, for 8 taps.
__device__ __forceinline__ void sum_products(float (&sums)[POSITIONS][4], const float* seen,
                                             const uint4* __restrict__ weights,
                                             const int2* __restrict__ taps) {
#pragma unroll
  for (int position = 0; position < POSITIONS; ++position)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[position][i] = 0.0f;
#pragma unroll(STEPS <= 2 ? STEPS : 1)
  for (int step = 0; step < STEPS; ++step) {
    const int2 tap = __ldg(taps + step * 4);
    uint4 left[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      left[part] = __ldg(weights + (step * PARTS + part) * LANES);
#pragma unroll
    for (int term = 0; term < 2 * PARTS - 1; ++term)  // the smallest last
#pragma unroll
      for (int position = 0; position < POSITIONS; ++position) {
        const int x = position % WINDOW_X, y = position / WINDOW_X % WINDOW_Y;
        const int z = position / WINDOW_X / WINDOW_Y;
        const float* at = seen + (term == 2 ? IMAGE : 0) + z * PLANE + y * PITCH + x;
        multiply_add(sums[position], left[term == 1 ? PARTS - 1 : 0], at[tap.x], at[tap.y]);
      }
  }
}

// Keeps the largest sums of 8 voxels. A lane has two voxels side by side, for two maps.
__device__ __forceinline__ void keep_largest(float* maxima, const float (&sums)[POSITIONS][4]) {
  float largest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    largest[i] = sums[0][i];
#pragma unroll
    for (int position = 1; position < POSITIONS; ++position)
      largest[i] = larger(largest[i], sums[position][i]);
  }
  *(float2*)maxima = make_float2(largest[0], largest[1]);
  *(float2*)(maxima + 8 * MAXIMA_PITCH) = make_float2(largest[2], largest[3]);
}

// Stores a row's maxima of 16 maps, as far as there are such maps and voxels. Bias and activation
// keep the order of values, so they are applied to the maxima.
__device__ __forceinline__ void store(float* out, Index map_stride, const float* maxima,
                                      const float* __restrict__ bias, int maps, int voxels) {
  const int lane = threadIdx.x % LANES;
#pragma unroll
  for (int map = 0; map < PRODUCT_MAPS; ++map) {
    const float of_map = __ldg(bias + map);
#pragma unroll
    for (int first = 0; first < TILE_X; first += LANES) {
      const int x = first + lane;
      if (map < maps && x < voxels)
        out[x] = activation(maxima[map * MAXIMA_PITCH + x] + of_map);
    }
    out += map_stride;
  }
}

// in: (image, IN_MAPS, z, y, x) by strides; out: (image, maps, z, y, x), by strides. weights: (16
// maps, 8 taps, part, lane, 4); taps: the places in the image of each lane's two of 8 taps; bias:
// padded to whole 16 maps. Blocks: tile x, tile y, tile z, image.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, BLOCKS)
    convolve_and_pool(const float* __restrict__ in, Index stride_n, Index stride_f,
                      Index stride_z, Index stride_y, int in_z, int in_y, int in_x,
                      float* __restrict__ out, Index image_stride, Index map_stride, Index z_stride,
                      Index y_stride, int maps, int out_z, int out_y, int out_x,
                      const uint4* __restrict__ weights, const int2* __restrict__ taps,
                      const float* __restrict__ bias, int tiles_z, int tiles_y, int tiles_x) {
  extern __shared__ __align__(16) float image[];
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  float* maxima = image + PARTS * IMAGE + warp * PRODUCT_MAPS * MAXIMA_PITCH;

  unsigned block = blockIdx.x;
  const int x = block % tiles_x * TILE_X;
  block /= tiles_x;
  const int first_y = block % tiles_y * TILE_Y;
  block /= tiles_y;
  const int first_z = block % tiles_z * TILE_Z;
  const Index item = block / tiles_z;
  bring_image(image,
              in + item * stride_n + first_z * WINDOW_Z * stride_z +
                  first_y * WINDOW_Y * stride_y + x * WINDOW_X,
              stride_f, stride_z, stride_y, in_z - first_z * WINDOW_Z - 1,
              in_y - first_y * WINDOW_Y - 1, in_x - x * WINDOW_X - 1);
  __syncthreads();

  const int y = first_y + warp % TILE_Y, z = first_z + warp / TILE_Y;
  if (y >= out_y || z >= out_z) return;
  const int voxels = out_x - x;
  out += item * image_stride + z * z_stride + y * y_stride + x;
  const float* seen = image + warp / TILE_Y * WINDOW_Z * PLANE +
                      warp % TILE_Y * WINDOW_Y * PITCH + lane / 4 * WINDOW_X;
  weights += lane;
  taps += lane % 4;
#pragma unroll 1
  for (int map = 0; map < maps; map += PRODUCT_MAPS) {
#pragma unroll 1
    for (int eight = 0; eight < min(TILE_X, voxels); eight += PRODUCT_VOXELS) {
      float sums[POSITIONS][4];
      sum_products(sums, seen + eight * WINDOW_X, weights, taps);
      keep_largest(maxima + lane / 4 * MAXIMA_PITCH + eight + lane % 4 * 2, sums);
    }
    __syncwarp();
    store(out, map_stride, maxima, bias + map, maps - map, voxels);
    __syncwarp();
    out += PRODUCT_MAPS * map_stride;
    weights += STEPS * PARTS * LANES;
  }
}
