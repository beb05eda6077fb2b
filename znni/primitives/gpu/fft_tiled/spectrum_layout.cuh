// Where a tile's spectrum lies: (block of tiles, line, tile of the block, group, frequency, map).
//
// A line is LINE frequencies. What a tile has there of a group of GROUP maps is contiguous: more
// than a sector of memory for its transforms, and half of what a product at a frequency touches.

constexpr int LINE = 2;
constexpr int SECTOR = 32;  // bytes: one frequency of a group
constexpr int GROUP = SECTOR / NUMBER_BYTES;
constexpr int GROUP_BYTES = LINE * SECTOR;
constexpr int ROWS = 64;  // tiles of a block

// A tile's first line, of which each group has GROUP_BYTES; the next lies ROWS * groups of them on.
__device__ __forceinline__ long long offset_of(int tile, int first_line, int lines, int groups) {
  return ((tile / ROWS * (long long)lines + first_line) * ROWS + tile % ROWS) * groups *
         GROUP_BYTES;
}
