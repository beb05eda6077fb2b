// Tiles of TILE_Z x TILE_Y x TILE_X voxels and the columns of their spectra.
//
// Transforms go along z first, then along y and x. The upper frequencies along z are conjugates of
// the lower ones, and are left out. A column is a pair (fz, fy) that is not the conjugate of
// another: the planes fz = 0 and fz = TILE_Z / 2 are conjugate to themselves, and have only half of
// the rows.

constexpr int HALF_Z = TILE_Z / 2 + 1;
constexpr int OWN_PLANES = TILE_Z / 2 - 1;
constexpr int WHOLE_ROWS = TILE_Y / 2 + 1;
constexpr int COLUMNS = OWN_PLANES * TILE_Y + 2 * WHOLE_ROWS;

struct Column {
  int fz, fy;
};

// The frequency 0 in all directions: the sum of all voxels, a real number.
constexpr int MEAN = OWN_PLANES * TILE_Y * TILE_X;

__device__ __forceinline__ bool has_mean(const Column& column) {
  return column.fz == 0 && column.fy == 0;
}

// Returns a column. Neighbouring columns are neighbouring rows of a plane, and so lie in different
// banks.
__device__ __forceinline__ Column column_at(int number) {
  const int rest = number - OWN_PLANES * TILE_Y;
  if (rest < 0) return {1 + number / TILE_Y, number % TILE_Y};
  return {rest / WHOLE_ROWS * (TILE_Z / 2), rest % WHOLE_ROWS};
}

// A tile of an image: its image and the first voxel that it writes.
struct Place {
  int image, z, y, x;
};

__device__ __forceinline__ Place place_of(long long tile, int tiles_z, int tiles_y,
                                          int tiles_x) {
  int x = tile % tiles_x;
  tile /= tiles_x;
  int y = tile % tiles_y;
  tile /= tiles_y;
  int z = tile % tiles_z;
  return {int(tile / tiles_z), z * VALID_Z, y * VALID_Y, x * VALID_X};
}

constexpr int FREQUENCIES = COLUMNS * TILE_X;
