// Products of spectra in float16: at each frequency, tiles x maps times maps x maps, complex, with
// sums in float32.
//
// A team copies its rows of the left side to shared memory as they are, and from there to
// registers, in the order of tensor cores. Each of 4 lanes has every fourth chunk of a row: 4
// numbers. It multiplies them so that all groups of the row have one exponent. Any order of input
// maps and of output maps will do, if the right side has the same. So a lane's numbers are whole
// chunks on both sides.

constexpr int CHUNKS = IN_MAPS / 4;
constexpr int TURNS = CHUNKS / 4;                // chunks of a row that a lane has
constexpr int ROW_BYTES = (TURNS | 1) * 64;      // two rows' chunks lie in different banks
constexpr int RIGHT_BYTES = CHUNKS * CHUNK_COLUMNS_BYTES;
constexpr int LEFT_BYTES = TEAM_ROWS * (ROW_BYTES + EXPONENTS);

// Starts loading rows and their exponents; zeros follow beyond the matrix.
__device__ __forceinline__ void load_rows(unsigned left, const char* rows, int groups,
                                          int used_groups, const signed char* exponents, int valid,
                                          int thread) {
#pragma unroll 5
  for (int i = thread; i < TEAM_ROWS * CHUNKS; i += TEAM_THREADS) {
    const int row = i / CHUNKS;
    const int chunk = i % CHUNKS;
    const bool inside = row < valid && chunk / 2 < used_groups;
    const int offset = inside ? (row * groups + chunk / 2) * GROUP_BYTES + chunk % 2 * CHUNK : 0;
    copy_16_bytes_or_zeros(left + row * ROW_BYTES + chunk * CHUNK, rows + offset, inside);
  }
  for (int i = thread; i < TEAM_ROWS * EXPONENTS / CHUNK; i += TEAM_THREADS) {
    const bool inside = i * CHUNK / EXPONENTS < valid;
    copy_16_bytes_or_zeros(left + TEAM_ROWS * ROW_BYTES + i * CHUNK,
               (const char*)exponents + (inside ? i * CHUNK : 0), inside);
  }
}

// Multiplies both numbers of a pair by a power of two.
__device__ __forceinline__ unsigned scaled(unsigned pair, unsigned factors) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factors));
  return product;
}

// Loads a lane's chunks of a row, and brings them to the largest exponent of the row. A chunk has
// one exponent, or one for each of its numbers.
__device__ __forceinline__ void take_row(uint4* chunks, const char* left, int row, int lane) {
  constexpr int OF_CHUNK = EXPONENT_MAPS < 4 ? 4 / EXPONENT_MAPS : 1;
  const signed char* exponents = (const signed char*)left + TEAM_ROWS * ROW_BYTES +
                                 row * EXPONENTS + 4 * lane / EXPONENT_MAPS;
  int of_turns[TURNS][OF_CHUNK];
  int largest = LEAST_EXPONENT;
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    chunks[turn] = *(const uint4*)(left + row * ROW_BYTES + (4 * turn + lane) * CHUNK);
#pragma unroll
    for (int i = 0; i < OF_CHUNK; ++i) {
      of_turns[turn][i] = exponents[16 / EXPONENT_MAPS * turn + i];
      largest = max(largest, of_turns[turn][i]);
    }
  }
  if (EXPONENT_MAPS < 8) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    unsigned factors[OF_CHUNK];
#pragma unroll
    for (int i = 0; i < OF_CHUNK; ++i) {
      const float factor = __int_as_float(max(127 + of_turns[turn][i] - largest, 0) << 23);
      factors[i] = rounded_pair(factor, factor);
    }
    uint4& chunk = chunks[turn];
    chunk = make_uint4(scaled(chunk.x, factors[0]), scaled(chunk.y, factors[OF_CHUNK / 4]),
                       scaled(chunk.z, factors[OF_CHUNK / 2]),
                       scaled(chunk.w, factors[OF_CHUNK - 1]));
  }
}

// Adds both parts of sums that are means, and keeps in the second what rounding takes off.
__device__ __forceinline__ void join_means(float* sum) {
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; i += 2) {
    sum[i] += sum[i + 1];
    sum[i + 1] = rest_of(sum[i]);
  }
}

// Stores a team's sums. Each of 4 lanes of a row has 4 numbers of every second group.
__device__ __forceinline__ void store_rows(char* rows, int groups, const float* sum, int valid,
                                           int used_groups, int thread) {
  const int lane = thread % 4;
#pragma unroll
  for (int eight = 0; eight < 2; ++eight) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * eight;
#pragma unroll
    for (int turn = 0; turn < OUT_MAPS / 16; ++turn) {
      const float* first = sum + 16 * turn + 2 * eight;
      const int group = 2 * turn + lane / 2;
      if (row < valid && group < used_groups)
        *(uint4*)(rows + (row * groups + group) * GROUP_BYTES + lane % 2 * CHUNK) =
            make_uint4(rounded_pair(first[0], first[1]), rounded_pair(first[4], first[5]),
                       rounded_pair(first[8], first[9]), rounded_pair(first[12], first[13]));
    }
  }
}

extern "C" __global__ void __launch_bounds__(TEAMS * TEAM_THREADS, 1)
    multiply_spectra(const char* left, int left_groups, int used_groups,
                     const uint4* __restrict__ right, int out_maps, char* product,
                     int product_groups, int out_groups, int tiles, int frequencies,
                     const signed char* __restrict__ exponents, int mean) {
  extern __shared__ __align__(1024) char shared[];
  const int team = threadIdx.x / TEAM_THREADS;
  const int thread = threadIdx.x % TEAM_THREADS;
  const int first_map = blockIdx.y * OUT_MAPS;
  const int blocks = (tiles + TEAM_ROWS - 1) / TEAM_ROWS;
  const long long right_size = CHUNKS * out_maps;
  const unsigned right_shared = shared_address(shared);
  const char* left_rows = shared + RIGHT_BYTES + team * LEFT_BYTES;

  for (int frequency = blockIdx.x; frequency < frequencies; frequency += gridDim.x) {
    const auto first_row = [=](int block, int groups) {
      return offset_of(block * TEAM_ROWS, frequency / LINE, frequencies / LINE, groups) +
             frequency % LINE * SECTOR;
    };
    const auto load_block = [=](int block) {
      load_rows(shared_address(left_rows), left + first_row(block, left_groups), left_groups,
                used_groups, exponents + block * TEAM_ROWS * EXPONENTS, tiles - block * TEAM_ROWS, thread);
    };
    if (team < blocks) load_block(team);
    __syncthreads();
    load_right(shared, right + frequency * right_size, CHUNKS, out_maps, first_map);
    publish_to_tensor_cores();
    __syncthreads();

    for (int block = team; block < blocks; block += TEAMS) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      team_barrier(team);
      const int row = thread / 32 * 16 + thread % 32 / 4;
      uint4 first[TURNS], second[TURNS];
      take_row(first, left_rows, row, thread % 4);
      take_row(second, left_rows, row + 8, thread % 4);
      team_barrier(team);
      if (block + TEAMS < blocks) load_block(block + TEAMS);

      float sum[COLUMNS / 2];
      begin_products();
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned b = right_shared + 4 * turn * CHUNK_COLUMNS_BYTES;
        multiply_add(sum, first[turn].x, second[turn].x, first[turn].y, second[turn].y,
                     descriptor(b, CHUNK_COLUMNS_BYTES, 8 * CHUNK), turn > 0);
        multiply_add(sum, first[turn].z, second[turn].z, first[turn].w, second[turn].w,
                     descriptor(b + 2 * CHUNK_COLUMNS_BYTES, CHUNK_COLUMNS_BYTES, 8 * CHUNK), true);
      }
      commit_products();
      wait_for_products();
      if (frequency == mean) join_means(sum);
      store_rows(product + first_row(block, product_groups) + first_map / GROUP * GROUP_BYTES,
                 product_groups, sum, tiles - block * TEAM_ROWS, out_groups - first_map / GROUP, thread);
    }
  }
}
