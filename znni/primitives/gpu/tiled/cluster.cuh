// A group of maps of a tile is transformed by CLUSTER blocks, each with MAPS of them in its shared
// memory, which the others can reach.

constexpr int CLUSTER = GROUP / MAPS;

#define KERNEL_OF_CLUSTERS \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) __cluster_dims__(CLUSTER, 1, 1)

// Where a map of the group is.
__device__ __forceinline__ float2* shared_of(float2* own, int map) {
  float2* block = own;
  if (CLUSTER > 1) asm("mapa.u64 %0, %1, %2;" : "=l"(block) : "l"(own), "r"(map / MAPS));
  return block + map % MAPS * MAP_STRIDE;
}

// All threads of the cluster have come this far, and see what the others have written.
__device__ __forceinline__ void cluster_barrier() {
  if (CLUSTER == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  }
}

// What a cluster works on. Clusters that follow each other take the same maps of STRIP neighbouring
// tiles, which have voxels and sectors of memory in common.
struct Share {
  int tile, group, rank;
};

__device__ __forceinline__ Share share_of(int groups) {
  const int number = blockIdx.x / CLUSTER;
  return {number / (STRIP * groups) * STRIP + number % STRIP, number / STRIP % groups,
          int(blockIdx.x % CLUSTER)};
}

// The columns of a spectrum, as they are moved between the shared memory of a cluster and global
// memory: 16 bytes of a column by each thread, of several columns at once by those of a block.
constexpr int PIECES = 2 * TILE_X;
constexpr int COLUMNS_AT_ONCE = THREADS / PIECES;
constexpr int COLUMN_STEP = CLUSTER * COLUMNS_AT_ONCE;
static_assert(COLUMNS_AT_ONCE > 0, "a block has fewer threads than a column has pieces");

struct Piece {
  int column, number;
};

__device__ __forceinline__ Piece first_piece(int rank) {
  const int column = threadIdx.x / PIECES;
  return {column < COLUMNS_AT_ONCE ? rank * COLUMNS_AT_ONCE + column : COLUMNS,
          int(threadIdx.x % PIECES)};
}

__device__ __forceinline__ long long offset_of(Piece piece, long long line_bytes) {
  constexpr int pieces = 2 * LINE;
  return (piece.column * (TILE_X / LINE) + piece.number / pieces) * line_bytes +
         piece.number % pieces * 16;
}

__device__ __forceinline__ int place_of(Column column) {
  return column.fz * PLANE_STRIDE + column.fy * ROW_STRIDE;
}
