// Products of spectra: at each frequency, tiles x maps times maps x maps, complex, in float32.
//
// A number is the sum of two bfloat16 halves, high and low. In a row of the left side the high
// halves of 4 numbers, 16 bytes, are followed by their low halves. Tensor cores multiply both by
// the right side's high halves, and both by its low ones. These two products are all four terms,
// summed in float32.
//
// Shared memory holds the left side in the order of wgmma: rows of 32 bytes, with the halves
// swapped in every second four rows. `multiply_group` comes from the file of the instruction.

constexpr int GROUPS = IN_MAPS / GROUP;
constexpr int RIGHT_BYTES = GROUPS * CHUNK_COLUMNS_BYTES;  // high or low halves
constexpr int LEFT_GROUP_BYTES = TEAM_ROWS * 2 * CHUNK;
constexpr int LEFT_BYTES = GROUPS * LEFT_GROUP_BYTES;

// Starts loading rows; zeros follow beyond the matrix.
__device__ __forceinline__ void load_rows(unsigned left, const char* rows, int groups,
                                          int used_groups, int valid, int thread) {
#pragma unroll 4
  for (int i = thread; i < (GROUPS + 1) / 2 * TEAM_ROWS * 4; i += TEAM_THREADS) {
    // Order of lanes: the halves of 4 rows, which are contiguous in shared memory; 2 groups; the
    // next 4 rows.
    const int half = i % 2;
    const int group = i / 8 % 2 + i / (TEAM_ROWS * 4) * 2;
    const int row = i / 2 % 4 + i / 16 % (TEAM_ROWS / 4) * 4;
    if (GROUPS % 2 && group == GROUPS) continue;
    const bool inside = row < valid && group < used_groups;
    const int offset = inside ? (row * groups + group) * GROUP_BYTES + half * CHUNK : 0;
    copy_16_bytes_or_zeros(left + group * LEFT_GROUP_BYTES + (2 * row + (half ^ row / 4 % 2)) * CHUNK,
               rows + offset, inside);
  }
}

// Stores a team's sums. Each of 4 lanes has a number of a row and a group. Two lanes exchange
// numbers of neighbouring groups, so that each stores two numbers of one group.
__device__ __forceinline__ void store_rows(char* rows, int groups, const float* sum, int valid,
                                           int used_groups, int thread) {
  const bool odd = thread & 1;
  rows += odd * GROUP_BYTES + thread % GROUP / 2 * 2 * sizeof(float2);
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * eight;
    const bool inside = row < valid;
#pragma unroll
    for (int group = 0; group < OUT_MAPS / GROUP; group += 2) {
      const float* first = sum + 4 * group + 2 * eight;
      const bool alone = group + 1 == OUT_MAPS / GROUP;
      const float next[2] = {alone ? 0.0f : first[4], alone ? 0.0f : first[5]};
      const float real = __shfl_xor_sync(0xffffffffu, odd ? first[0] : next[0], 1);
      const float imaginary = __shfl_xor_sync(0xffffffffu, odd ? first[1] : next[1], 1);
      const float4 pair = odd ? make_float4(real, imaginary, next[0], next[1])
                              : make_float4(first[0], first[1], real, imaginary);
      if (inside && group + odd < used_groups && !(alone && odd))
        *(float4*)(rows + (row * groups + group) * GROUP_BYTES) = pair;
    }
  }
}

extern "C" __global__ void __launch_bounds__(TEAMS * TEAM_THREADS, 1)
    multiply_spectra(const char* left, int left_groups, int used_groups,
                     const uint4* __restrict__ right, int out_maps, char* product,
                     int product_groups, int out_groups, int tiles, int frequencies) {
  extern __shared__ __align__(1024) char shared[];
  const int team = threadIdx.x / TEAM_THREADS;
  const int thread = threadIdx.x % TEAM_THREADS;
  const int first_map = blockIdx.y * OUT_MAPS;
  const int blocks = (tiles + TEAM_ROWS - 1) / TEAM_ROWS;
  const long long right_size = 2 * GROUPS * out_maps;
  const unsigned right_shared = shared_address(shared);
  const unsigned left_shared = right_shared + 2 * RIGHT_BYTES + team * LEFT_BYTES;

  for (int frequency = blockIdx.x; frequency < frequencies; frequency += gridDim.x) {
    const auto first_row = [=](int block, int groups) {
      return offset_of(block * TEAM_ROWS, frequency / LINE, frequencies / LINE, groups) +
             frequency % LINE * SECTOR;
    };
    if (team < blocks)
      load_rows(left_shared, left + first_row(team, left_groups), left_groups, used_groups,
                tiles - team * TEAM_ROWS, thread);
    __syncthreads();
    load_right(shared, right + frequency * right_size, 2 * GROUPS, out_maps, first_map);
    publish_to_tensor_cores();
    __syncthreads();

    for (int block = team; block < blocks; block += TEAMS) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      publish_to_tensor_cores();
      team_barrier(team);

      float sum[COLUMNS / 2];
      begin_products();
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        const unsigned high = right_shared + group * CHUNK_COLUMNS_BYTES;
        multiply_group(sum, left_shared + group * LEFT_GROUP_BYTES, high, high + RIGHT_BYTES,
                       group > 0);
      }
      commit_products();
      wait_for_products();
      team_barrier(team);

      const int next = block + TEAMS;
      if (next < blocks)
        load_rows(left_shared, left + first_row(next, left_groups), left_groups, used_groups,
                  tiles - next * TEAM_ROWS, thread);
      store_rows(product + first_row(block, product_groups) + first_map / GROUP * GROUP_BYTES,
                 product_groups, sum, tiles - block * TEAM_ROWS, out_groups - first_map / GROUP, thread);
    }
  }
}
