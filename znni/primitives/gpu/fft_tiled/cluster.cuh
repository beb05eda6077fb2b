// A group of maps of a tile is transformed by CLUSTER blocks, each with MAPS of them in its shared
// memory, which the others can reach.

constexpr int CLUSTER = GROUP / MAPS;

#define KERNEL_OF_CLUSTERS \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) __cluster_dims__(CLUSTER, 1, 1)

// Where another block of the cluster has what this one has there in its shared memory.
template <typename T>
__device__ __forceinline__ T* of_block(T* own, int rank) {
  T* there = own;
  if (CLUSTER > 1) asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return there;
}

// Where a map of the group is.
__device__ __forceinline__ float2* shared_of(float2* own, int map) {
  return of_block(own, map / MAPS) + map % MAPS * MAP_STRIDE;
}

// What was written before one is seen after the other by all threads of the cluster. Of a block
// that is alone it is not: it has its own barrier.
__device__ __forceinline__ void cluster_arrive() {
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  if (CLUSTER > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// All threads of the cluster have come this far, and see what the others have written.
__device__ __forceinline__ void cluster_barrier() {
  if (CLUSTER == 1) __syncthreads();
  cluster_arrive();
  cluster_wait();
}

// All threads of the cluster have come this far. What they have written may still be on its way,
// for which the barrier above waits, to global memory as well.
__device__ __forceinline__ void cluster_meet() {
  if (CLUSTER == 1) return;
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
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
constexpr int COLUMN_TURNS = (COLUMNS + COLUMN_STEP - 1) / COLUMN_STEP;
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
