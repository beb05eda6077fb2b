// What kernels on the host take from runtime.cpp.

#pragma once

#include <cstddef>

struct Index3 {
  unsigned x, y, z;
};

extern Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

// Does an operation of a warp for all its lanes, each of which has given its arguments.
typedef void (*Together)(void** arguments);

// Waits until all lanes of the warp have come, and does their operation.
void of_warp(Together together, void* arguments);

// Waits until so many threads have come to a barrier; 0: all threads of the block.
void at_barrier(int id, int expected);

// Waits until `wake_all` is called. Whoever waits for a phase looks again then.
void sleep();
void wake_all();

// Copies `of_source` of `bytes` bytes and zeros for the rest, at the latest when waited for.
void copy_later(void* target, const void* source, int bytes, int of_source);
void commit_group();

// Finishes copies but for the last groups; a negative number: even those that are not committed.
void finish_copies(int groups_left);

// The dynamic shared memory of the block, and the place from which assembly counts its bytes.
void* shared_memory();
extern char* shared_origin;

[[noreturn]] void not_emulated(const char* what);

}  // namespace emulation
