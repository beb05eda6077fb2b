// The layout of spectra: (block of tiles, line, tile of the block, group, frequency, map).
//
// A line is LINE frequencies. The numbers of a tile, a line and a group of GROUP maps are
// contiguous. Transforms move all of them, more than a sector of memory; a product at a frequency
// moves half.

constexpr int LINE = 2;
constexpr int SECTOR = 32;  // bytes: one frequency of a group
constexpr int GROUP = SECTOR / NUMBER_BYTES;
constexpr int GROUP_BYTES = LINE * SECTOR;
constexpr int ROWS = 64;  // tiles of a block

// Returns the offset of a tile's line, in which each group has GROUP_BYTES. The next line lies
// ROWS * groups * GROUP_BYTES further.
__device__ __forceinline__ long long offset_of(int tile, int first_line, int lines, int groups) {
  return ((tile / ROWS * (long long)lines + first_line) * ROWS + tile % ROWS) * groups *
         GROUP_BYTES;
}
