// CUDA C++ for the host's compiler: types, functions and instructions that znni's kernels use.

#pragma once

#include "runtime.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static
#define __CUDA_ARCH__ 800

// Products take most of the time of a run. The rest of a kernel takes longer to compile than to run.
#define OPTIMIZED __attribute__((optimize("O3")))

typedef Index3 dim3;
typedef Index3 uint3;

#define VECTORS(type, element)                                             \
  struct __align__(2 * sizeof(element)) type##2 { element x, y; };         \
  struct __align__(4 * sizeof(element)) type##4 { element x, y, z, w; };   \
  inline type##2 make_##type##2(element x, element y) { return {x, y}; }   \
  inline type##4 make_##type##4(element x, element y, element z, element w) { \
    return {x, y, z, w};                                                   \
  }
VECTORS(float, float)
VECTORS(int, int)
VECTORS(uint, unsigned)

template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  typedef std::common_type_t<A, B> Both;
  return (Both)a < (Both)b ? (Both)a : (Both)b;
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  typedef std::common_type_t<A, B> Both;
  return (Both)a < (Both)b ? (Both)b : (Both)a;
}

namespace emulation {
template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace emulation

inline float __uint_as_float(unsigned bits) { return emulation::bits_as<float>(bits); }
inline float __int_as_float(int bits) { return emulation::bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return emulation::bits_as<unsigned>(value); }
inline int __float_as_int(float value) { return emulation::bits_as<int>(value); }
template <class T>
inline T __ldg(const T* from) { return *from; }
template <class T>
inline T __ldcs(const T* from) { return *from; }

namespace emulation {
// Assembly has 32 bits for a place in shared memory. Of dynamic memory these are the bytes from its
// origin on, as on a GPU; of static memory those from an object of the same library, and some more.
static char near_static_memory;
constexpr unsigned STATIC = 1u << 31, MIDDLE = 3u << 30;
inline void* at_place(unsigned place) {
  return place < STATIC ? shared_origin + place : &near_static_memory + (int)(place - MIDDLE);
}
}  // namespace emulation
inline size_t __cvta_generic_to_shared(const void* pointer) {
  const ptrdiff_t place = (const char*)pointer - emulation::shared_origin;
  if (place >= 0 && place < emulation::STATIC) return place;
  return emulation::MIDDLE + ((const char*)pointer - &emulation::near_static_memory);
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned chosen) {
  const uint64_t bytes = (uint64_t)high << 32 | low;
  unsigned found = 0;
  for (int i = 0; i < 4; ++i)
    found |= (unsigned)(bytes >> 8 * (chosen >> 4 * i & 7) & 0xff) << 8 * i;
  return found;
}

inline void sincospif(float x, float* sine, float* cosine) {
  *sine = (float)sin(M_PI * x);
  *cosine = (float)cos(M_PI * x);
}

inline float __expf(float value) { return std::exp(value); }
// The host's compiler does not join these to one operation.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }

// Threads run one after the other, so nothing comes between reading and writing.
template <class T>
inline T atomicMax(T* place, T value) {
  const T before = *place;
  *place = max(before, value);
  return before;
}
template <class T>
inline T atomicAdd(T* place, T value) {
  const T before = *place;
  *place = before + value;
  return before;
}
inline void __threadfence() {}

// float16.
struct __half {
  _Float16 value;
};
struct __half2 {
  __half x, y;
};
inline float __half2float(__half number) { return (float)number.value; }
inline __half __float2half_rn(float value) { return {(_Float16)value}; }
inline unsigned short __half_as_ushort(__half number) { return emulation::bits_as<unsigned short>(number); }
inline __half __ushort_as_half(unsigned short bits) { return emulation::bits_as<__half>(bits); }

namespace emulation {
inline unsigned half_bits(float value) { return __half_as_ushort(__float2half_rn(value)); }
inline float from_half_bits(unsigned bits) { return (float)bits_as<_Float16>((uint16_t)bits); }
}  // namespace emulation

namespace emulation {

// Operations of a warp. A structure has a lane's arguments, and `of_all` computes for all lanes.
template <class Operation>
inline void of_warp(Operation& own) {
  of_warp([](void** lanes) { Operation::of_all((Operation**)lanes); }, &own);
}

template <class T>
struct Shuffle {
  T value;
  int from;
  static void of_all(Shuffle** lanes) {
    T found[32];
    for (int lane = 0; lane < 32; ++lane) found[lane] = lanes[lanes[lane]->from]->value;
    for (int lane = 0; lane < 32; ++lane) lanes[lane]->value = found[lane];
  }
};

struct Largest {
  unsigned value;
  static void of_all(Largest** lanes) {
    unsigned most = 0;
    for (int lane = 0; lane < 32; ++lane) most = max(most, lanes[lane]->value);
    for (int lane = 0; lane < 32; ++lane) lanes[lane]->value = most;
  }
};

struct Nothing {
  static void of_all(Nothing**) {}
};

inline void need_all(unsigned mask) {
  if (mask != ~0u) not_emulated("an operation of some lanes of a warp");
}

inline int own_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

template <class T>
inline T shuffled(unsigned mask, T value, int from) {
  need_all(mask);
  Shuffle<T> own = {value, from >= 0 && from < 32 ? from : own_lane()};
  of_warp(own);
  return own.value;
}

}  // namespace emulation

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane) {
  return emulation::shuffled(mask, value, lane % 32);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulation::shuffled(mask, value, emulation::own_lane() ^ bits);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, int distance) {
  return emulation::shuffled(mask, value, emulation::own_lane() + distance);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int distance) {
  return emulation::shuffled(mask, value, emulation::own_lane() - distance);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  emulation::need_all(mask);
  emulation::Largest own = {value};
  emulation::of_warp(own);
  return own.value;
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return (int)(__reduce_max_sync(mask, (unsigned)value ^ 0x80000000u) ^ 0x80000000u);
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulation::need_all(mask);
  emulation::Nothing own;
  emulation::of_warp(own);
}
inline void __syncthreads() { emulation::at_barrier(0, 0); }

// Instructions of PTX, with the operands in the order of the assembly's places.
namespace ptx {

using namespace emulation;

inline void nothing(...) {}

inline void max_nan(float& result, float a, float b) {
  result = a > b || a != a ? a : b;
}

inline void halves(unsigned& pair, float high, float low) {
  pair = half_bits(high) << 16 | half_bits(low);
}
inline void floats_of_halves(float& low, float& high, unsigned pair) {
  low = from_half_bits(pair & 0xffff);
  high = from_half_bits(pair >> 16);
}
inline void max_nan_of_halves(unsigned& result, unsigned a, unsigned b) {
  float low, high;
  max_nan(low, from_half_bits(a & 0xffff), from_half_bits(b & 0xffff));
  max_nan(high, from_half_bits(a >> 16), from_half_bits(b >> 16));
  halves(result, high, low);
}
inline void product_of_halves(unsigned& product, unsigned a, unsigned b) {
  // The product of two float16 fits float32, so it is rounded once.
  halves(product, from_half_bits(a >> 16) * from_half_bits(b >> 16),
         from_half_bits(a & 0xffff) * from_half_bits(b & 0xffff));
}

inline unsigned bfloat16_bits(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void bfloats(unsigned& pair, float high, float low) {
  pair = bfloat16_bits(high) << 16 | bfloat16_bits(low);
}
inline void power_of_two(float& power, float exponent) { power = std::exp2(exponent); }
inline void reciprocal(float& result, float value) { result = 1.0f / value; }
inline void tf32(unsigned& bits, float value) {
  bits = (__float_as_uint(value) + 0x1000u) & 0xffffe000u;
}

template <class T>
inline T* at(unsigned shared) { return (T*)at_place(shared); }

inline void load_shared(float& value, unsigned shared) { value = *at<float>(shared); }
template <class T>
inline void store_if(unsigned wanted, T* target, T value) {
  if (wanted) *target = value;
}

struct LoadMatrices {
  unsigned row;
  int count;
  unsigned found[4];
  static void of_all(LoadMatrices** lanes) {
    for (int matrix = 0; matrix < lanes[0]->count; ++matrix)
      for (int lane = 0; lane < 32; ++lane)
        lanes[lane]->found[matrix] =
            at<unsigned>(lanes[8 * matrix + lane / 4]->row)[lane % 4];
  }
};
inline void four_matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned row) {
  LoadMatrices own = {row, 4, {}};
  of_warp(own);
  a = own.found[0], b = own.found[1], c = own.found[2], d = own.found[3];
}
inline void two_matrices(unsigned& a, unsigned& b, unsigned row) {
  LoadMatrices own = {row, 2, {}};
  of_warp(own);
  a = own.found[0], b = own.found[1];
}

// Sums are in float32. Tensor cores cut off what they add, which is not repeated here.
template <class Numbers>
struct Product {
  float* sum[4];
  unsigned a[4], b[2];
  OPTIMIZED static void of_all(Product** lanes) {
    constexpr int DEPTH = Numbers::DEPTH, EACH = DEPTH / 8;
    float left[16][DEPTH], right[DEPTH][8], sums[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const Product& own = *lanes[lane];
      const int row = lane / 4, first = lane % 4 * EACH;
      for (int i = 0; i < EACH; ++i) {
        left[row][first + i] = Numbers::at(own.a[0], i);
        left[row + 8][first + i] = Numbers::at(own.a[1], i);
        left[row][first + DEPTH / 2 + i] = Numbers::at(own.a[2], i);
        left[row + 8][first + DEPTH / 2 + i] = Numbers::at(own.a[3], i);
        right[first + i][row] = Numbers::at(own.b[0], i);
        right[first + DEPTH / 2 + i][row] = Numbers::at(own.b[1], i);
      }
      for (int i = 0; i < 4; ++i) sums[row + i / 2 * 8][lane % 4 * 2 + i % 2] = *own.sum[i];
    }
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < DEPTH; ++k)
        for (int column = 0; column < 8; ++column)
          sums[row][column] += left[row][k] * right[k][column];
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        *lanes[lane]->sum[i] = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
};
struct Halves16 {
  static constexpr int DEPTH = 16;
  static float at(unsigned pair, int i) { return from_half_bits(pair >> 16 * i & 0xffff); }
};
struct Bfloats16 {
  static constexpr int DEPTH = 16;
  static float at(unsigned pair, int i) { return __uint_as_float((pair >> 16 * i) << 16); }
};
struct Tf32s8 {
  static constexpr int DEPTH = 8;
  static float at(unsigned bits, int) { return __uint_as_float(bits & 0xffffe000u); }
};
template <class Numbers>
inline void product(float& s0, float& s1, float& s2, float& s3, unsigned a0, unsigned a1,
                    unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  Product<Numbers> own = {{&s0, &s1, &s2, &s3}, {a0, a1, a2, a3}, {b0, b1}};
  of_warp(own);
}

template <int BYTES>
inline void copy(unsigned target, const void* source, int of_source = BYTES) {
  copy_later(at<void>(target), source, BYTES, of_source);
}
inline void commit() { commit_group(); }
inline void wait_all() { finish_copies(-1); }
inline void wait_group(int left) { finish_copies(left); }
inline void barrier(int id, int threads) { at_barrier(id, threads); }

// A barrier in shared memory, of 8 bytes. A phase ends when all have arrived and all bytes are there.
struct Phases {
  short expected, missing;
  int bytes : 31;
  unsigned odd : 1;

  void look() {
    if (missing < 0) not_emulated("more arrive at a barrier than it expects");
    if (missing || bytes) return;
    missing = expected;
    odd ^= 1;
    wake_all();
  }
};
static_assert(sizeof(Phases) == 8);
inline void begin_counting(unsigned barrier, int expected) {
  *at<Phases>(barrier) = {(short)expected, (short)expected, 0, 0};
}
inline void arrive_expecting(unsigned barrier, int bytes) {
  Phases& phases = *at<Phases>(barrier);
  phases.bytes += bytes;
  --phases.missing;
  phases.look();
}
inline void arrive(unsigned barrier) { arrive_expecting(barrier, 0); }
inline void wait_for_phase(unsigned barrier, unsigned odd) {
  while (at<Phases>(barrier)->odd == odd) sleep();
}
inline void arrive_after_copies(unsigned barrier) {
  finish_copies(-1);
  arrive(barrier);
}
inline void copy_of_bytes(unsigned target, const void* source, int bytes, unsigned barrier) {
  memcpy(at<void>(target), source, bytes);
  at<Phases>(barrier)->bytes -= bytes;
  at<Phases>(barrier)->look();
}

// What all lanes of a warp do at the same time.
inline void together() { __syncwarp(); }

typedef short Halves __attribute__((vector_size(16)));  // eight float16 numbers
typedef float Float32s __attribute__((vector_size(32)));

// A side of a product in shared memory, as common/wgmma.cuh describes it.
struct SideOfProduct {
  unsigned first, next_sum, next_row;

  explicit SideOfProduct(uint64_t side)
      : first((side & 0x3fff) << 4), next_sum((side >> 16 & 0x3fff) << 4),
        next_row((side >> 32 & 0x3fff) << 4) {}
  // Converts a row to float32. Two matrices have half of it each.
  __forceinline__ void row(int number, float (&found)[16]) const {
    for (int half = 0; half < 2; ++half) {
      const unsigned matrix = first + number / 8 * next_row + half * next_sum;
      const Float32s eight = __builtin_ia32_vcvtph2ps256(at<Halves>(matrix)[number % 8]);
      memcpy(found + half * 8, &eight, sizeof eight);
    }
  }
};

// A sum of a thread, or one of the last three operands: two sides, and whether to add.
struct Operand {
  float* sum = nullptr;
  uint64_t number = 0;

  Operand(float& of_thread) : sum(&of_thread) {}
  template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
  Operand(T given) : number(given) {}
};

// Adds a product of float16 to a warpgroup's sums. Each thread computes its own: two rows of the left
// side, times two columns of each eight.
__noinline__ OPTIMIZED inline void product_of_warpgroup(std::initializer_list<Operand> operands) {
  together();
  const int count = (int)operands.size() - 3, lane = threadIdx.x % 32;
  const Operand* const all = operands.begin();
  const SideOfProduct left(all[count].number), right(all[count + 1].number);
  const int first = threadIdx.x % 128 / 32 * 16 + lane / 4;
  float rows[2][16], numbers[16];
  for (int row = 0; row < 2; ++row) left.row(first + row * 8, rows[row]);
  for (int eight = 0; eight < count / 4; ++eight)
    for (int column = 0; column < 2; ++column) {
      right.row(eight * 8 + lane % 4 * 2 + column, numbers);
      for (int row = 0; row < 2; ++row) {
        float& of_thread = *all[eight * 4 + row * 2 + column].sum;
        float sum = all[count + 2].number ? of_thread : 0.0f;
        for (int k = 0; k < 16; ++k) sum += rows[row][k] * numbers[k];
        of_thread = sum;
      }
    }
}

}  // namespace ptx

namespace emulation {

// Calls a kernel with arguments as a launch gives them, each by its address.
template <class... Arguments, size_t... I>
inline void call(void (*kernel)(Arguments...), void** given, std::index_sequence<I...>) {
  kernel(*(std::remove_cv_t<Arguments>*)given[I]...);
}
template <class... Arguments>
inline void call(void (*kernel)(Arguments...), void** given) {
  call(kernel, given, std::index_sequence_for<Arguments...>());
}

template <class T>
constexpr char kind_of() {
  return std::is_pointer_v<T>          ? 'p'
         : std::is_floating_point_v<T> ? (sizeof(T) == 4 ? 'f' : 'd')
                                       : (sizeof(T) == 4 ? 'i' : 'l');
}
// The kinds of a kernel's arguments, one letter each.
template <class... Arguments>
inline const char* kinds(void (*)(Arguments...)) {
  static const char found[] = {kind_of<Arguments>()..., 0};
  return found;
}

}  // namespace emulation
