// RANKS blocks transform a group of maps of a tile. Each has MAPS of them in its shared memory. If
// the chip has clusters, the blocks are one, and can access each other's. Else they are lone
// (IS_LONE), and each of them reads and writes its own part of the group's sectors. A lone block
// may take TURNS times MAPS maps one after the other, and keeps their spectra until all are there,
// so that its part is larger.

constexpr int OWN_MAPS = MAPS * TURNS;
constexpr int RANKS = GROUP / OWN_MAPS;
constexpr int CLUSTER = HAS_CLUSTERS ? RANKS : 1;

#if HAS_CLUSTERS
#define KERNEL_OF_CLUSTERS \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) __cluster_dims__(CLUSTER, 1, 1)
#else
#define KERNEL_OF_CLUSTERS extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#endif

// Returns the address in another block of the cluster that corresponds to one in this block.
template <typename T>
__device__ __forceinline__ T* of_block(T* own, int rank) {
  T* there = own;
  if (CLUSTER > 1) asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
  return there;
}

// Returns the place of a map of the group.
__device__ __forceinline__ float2* shared_of(float2* own, int map) {
  return of_block(own, map / MAPS) + map % MAPS * MAP_STRIDE;
}

// Between `arrive` and `wait` threads may do other work. After `wait` they see everything that the
// threads of the cluster wrote before `arrive`. A block that is alone uses its own barrier instead.
__device__ __forceinline__ void cluster_arrive() {
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  if (CLUSTER > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Waits until all threads of the cluster have come this far, and see what the others have written.
__device__ __forceinline__ void cluster_barrier() {
  if (CLUSTER == 1) __syncthreads();
  cluster_arrive();
  cluster_wait();
}

// Waits until all threads of the cluster have come this far. Unlike the barrier above, it does not
// wait for what they have written, to global memory either.
__device__ __forceinline__ void cluster_meet() {
  if (CLUSTER == 1) return;
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
}

// The work of a block. Blocks that follow each other take the maps of a group, and then the same
// group of STRIP neighbouring tiles, which share voxels and sectors of memory.
struct Share {
  int tile, group, rank;
};

__device__ __forceinline__ Share share_of(int groups) {
  const int number = blockIdx.x / RANKS;
  return {number / (STRIP * groups) * STRIP + number % STRIP, number / STRIP % groups,
          int(blockIdx.x % RANKS)};
}

// The columns of a spectrum move between the shared memory of a cluster and global memory. Each
// thread moves 16 bytes of a column, a piece; the threads of a block move several columns at once.
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

// Moves the parts of a sector that a lone block has: for each frequency of a spectrum, and each of
// PARTS parts of the numbers, `move(part, offset, place, column, x)` with the offset of the
// frequency's sector, and the place of its column in a map's shared memory.
template <int PARTS, typename Move>
__device__ __forceinline__ void for_each_part(long long line_bytes, Move move) {
#pragma unroll 4
  for (int i = threadIdx.x; i < COLUMNS * TILE_X * PARTS; i += THREADS) {
    const int x = i / PARTS % TILE_X, column = i / PARTS / TILE_X;
    move(i % PARTS, (column * (TILE_X / LINE) + x / LINE) * line_bytes + x % LINE * SECTOR,
         place_of(column_at(column)), column, x);
  }
}

// Numbers of so many bytes that are read or written together.
template <int BYTES>
struct Together;
template <>
struct Together<4> {
  typedef unsigned Type;
};
template <>
struct Together<8> {
  typedef uint2 Type;
};
template <>
struct Together<16> {
  typedef uint4 Type;
};
template <>
struct Together<32> {
  struct Type {
    uint4 halves[2];
  };
};
