// The common part of products of spectra, for any format of their numbers.
//
// If real and imaginary parts lie side by side, a complex product is a real one. Its right side has
// the square [[re b, im b], [-im b, re b]] for each complex number b. A block keeps the right side
// of one frequency after another in shared memory. Each of its TEAMS teams of warps loads,
// multiplies and stores 16 tiles for each warp at a time, so that some compute while others move
// data. A team is a warpgroup, or a warp on chips without products of warpgroups.

constexpr int CHUNK = 16;  // bytes: 4 complex numbers of two 16-bit parts, or of high or low halves
constexpr int TEAM_ROWS = 16 * TEAM_WARPS;
constexpr int TEAM_THREADS = 32 * TEAM_WARPS;
constexpr int COLUMNS = 2 * OUT_MAPS;
constexpr int CHUNK_COLUMNS_BYTES = COLUMNS * CHUNK;

// Expands the right side of one frequency, chunk by chunk: column 2m gets (re, -im), column 2m + 1
// gets (im, re).
__device__ __forceinline__ void load_right(char* shared, const uint4* right, int chunks,
                                           int out_maps, int first_map) {
#pragma unroll 3
  for (int i = threadIdx.x; i < chunks * OUT_MAPS; i += TEAMS * TEAM_THREADS) {
    const int map = i % OUT_MAPS;
    const int chunk = i / OUT_MAPS;
    uint4 pairs = {};
    if (first_map + map < out_maps) pairs = __ldcs(right + chunk * out_maps + first_map + map);
    uint4* target = (uint4*)(shared + (chunk * COLUMNS + 2 * map) * CHUNK);
    constexpr unsigned minus_imaginary = 0x80000000u;
    target[0] = make_uint4(pairs.x ^ minus_imaginary, pairs.y ^ minus_imaginary,
                           pairs.z ^ minus_imaginary, pairs.w ^ minus_imaginary);
    constexpr unsigned swapped = 0x1032;
    target[1] = make_uint4(__byte_perm(pairs.x, 0, swapped), __byte_perm(pairs.y, 0, swapped),
                           __byte_perm(pairs.z, 0, swapped), __byte_perm(pairs.w, 0, swapped));
  }
}

__device__ __forceinline__ void team_barrier(int team) {
  if (TEAM_WARPS == 1)
    __syncwarp();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(TEAM_THREADS) : "memory");
}
