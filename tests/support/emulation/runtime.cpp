// Runs CUDA kernels on the host: the threads of a block are fibers that take turns.
//
// A fiber runs until it waits for its warp or for a barrier. Blocks run one after the other.
// Memory ends at pages that nobody may touch, so a kernel that reads or writes beyond an array is
// stopped and named.

#include "runtime.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <vector>

Index3 threadIdx, blockIdx, blockDim, gridDim;

using emulation::Together;

namespace {

constexpr int LANES = 32, MOST_THREADS = 1024, BARRIERS = 16;
constexpr size_t STACK = 128 << 10, PAGE = 4096, ALIGNMENT = 16, SHARED_ALIGNMENT = 128;
constexpr size_t SHARED = 256 << 10;

enum State { RUNNABLE, WAITS_FOR_WARP, WAITS_AT_BARRIER, SLEEPS, ENDED };

struct Copy {
  void* target;
  const void* source;
  int bytes, of_source, group;
};

struct Fiber {
  void* stack_pointer;
  Index3 index;
  State state;
  int barrier;
  int group;  // the group of copies that is not committed yet
  std::vector<Copy> copies;
};

struct Warp {
  Together together;
  int arrived;
  void* arguments[LANES];
};

struct Barrier {
  int arrived, expected;
};

Fiber fibers[MOST_THREADS];
Warp warps[MOST_THREADS / LANES];
Barrier barriers[BARRIERS];
char* stacks;
char* shared_end;
char* shared_start;
void* main_stack_pointer;
sigjmp_buf failed;
char message[512];
int threads, alive, current;
bool eager;
void (*kernel)(void**);
void** kernel_arguments;

// Stops the launch. Fibers stay as they are, and are never continued.
[[noreturn]] void stop(const char* format, ...) {
  va_list values;
  va_start(values, format);
  int used = snprintf(message, sizeof message, "thread %d of block (%u, %u, %u) ", current,
                      blockIdx.x, blockIdx.y, blockIdx.z);
  vsnprintf(message + used, sizeof message - used, format, values);
  va_end(values);
  siglongjmp(failed, 1);
}

extern "C" void switch_stacks(void** kept, void* next);
asm(R"(
.text
.globl switch_stacks
.hidden switch_stacks
.type switch_stacks, @function
switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size switch_stacks, .-switch_stacks
)");

void wait_as(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  switch_stacks(&fiber.stack_pointer, main_stack_pointer);
}

int lanes_of(int warp) {
  const int rest = threads - warp * LANES;
  return rest < LANES ? rest : LANES;
}

void copy_now(const Copy& copy) {
  memcpy(copy.target, copy.source, copy.of_source);
  memset((char*)copy.target + copy.of_source, 0, copy.bytes - copy.of_source);
}

// What a fiber begins with.
void run_thread() {
  kernel(kernel_arguments);
  --alive;
  for (int i = 0; i < BARRIERS; ++i)
    if (barriers[i].arrived && barriers[i].expected == 0)
      stop("ends while others wait at a barrier");
  if (warps[current / LANES].arrived) stop("ends while its warp waits for it");
  wait_as(ENDED);
}

void prepare(int thread) {
  Fiber& fiber = fibers[thread];
  fiber.index = {thread % blockDim.x, thread / blockDim.x % blockDim.y,
                 thread / blockDim.x / blockDim.y};
  fiber.state = RUNNABLE;
  fiber.group = 0;
  fiber.copies.clear();
  // At the same place of their pages, the ends of all stacks would share few lines of the cache.
  void** top = (void**)(stacks + (thread + 1) * (STACK + PAGE) - thread % 48 * 320);
  *--top = nullptr;
  *--top = (void*)run_thread;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
}

bool run_warp(int warp, bool descending) {
  const int lanes = lanes_of(warp);
  bool ran = false;
  for (bool again = true; again;) {
    again = false;
    for (int i = 0; i < lanes; ++i) {
      current = warp * LANES + (descending ? lanes - 1 - i : i);
      if (fibers[current].state != RUNNABLE) continue;
      again = ran = true;
      threadIdx = fibers[current].index;
      switch_stacks(&main_stack_pointer, fibers[current].stack_pointer);
    }
  }
  return ran;
}

void run_block(bool descending) {
  const int count = (threads + LANES - 1) / LANES;
  for (int thread = 0; thread < threads; ++thread) prepare(thread);
  for (int warp = 0; warp < count; ++warp) warps[warp].arrived = 0;
  for (Barrier& barrier : barriers) barrier.arrived = 0;
  memset(shared_start, 0xff, shared_end - shared_start);  // NaN
  alive = threads;
  while (alive) {
    bool ran = false;
    for (int i = 0; i < count; ++i) ran |= run_warp(descending ? count - 1 - i : i, descending);
    if (ran) continue;
    for (current = 0; fibers[current].state == ENDED; ++current) {}
    stop("waits %s that others never reach",
         fibers[current].state == WAITS_FOR_WARP ? "for its warp in an operation" : "at a barrier");
  }
}

void on_fault(int, siginfo_t* info, void*) {
  stop("reads or writes at %p, which belongs to no array", info->si_addr);
}

void* mapped(size_t bytes) {
  void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? nullptr : found;
}

bool reserve() {
  if (stacks) return true;
  char* shared = (char*)mapped(SHARED + PAGE);
  stacks = (char*)mapped(MOST_THREADS * (STACK + PAGE));
  if (!shared || !stacks) return false;
  emulation::shared_origin = shared;
  shared_end = shared + SHARED;
  mprotect(shared_end, PAGE, PROT_NONE);
  for (int i = 0; i < MOST_THREADS; ++i) mprotect(stacks + i * (STACK + PAGE), PAGE, PROT_NONE);
  return true;
}

}  // namespace

namespace emulation {

void of_warp(Together together, void* arguments) {
  Warp& warp = warps[current / LANES];
  const int first = current / LANES * LANES, lanes = lanes_of(current / LANES);
  if (lanes != LANES) stop("is in a warp of %d lanes, which has no operations", lanes);
  if (warp.arrived && warp.together != together)
    stop("comes to another operation of the warp than its other lanes");
  warp.together = together;
  warp.arguments[current % LANES] = arguments;
  if (++warp.arrived < lanes) return wait_as(WAITS_FOR_WARP);
  together(warp.arguments);
  warp.arrived = 0;
  for (int lane = 0; lane < lanes; ++lane) fibers[first + lane].state = RUNNABLE;
}

void at_barrier(int id, int expected) {
  if (id < 0 || id >= BARRIERS) stop("names barrier %d", id);
  Barrier& barrier = barriers[id];
  if (barrier.arrived && barrier.expected != expected)
    stop("expects %d threads at a barrier at which others expect %d", expected, barrier.expected);
  barrier.expected = expected;
  if (expected == 0 && alive < threads) stop("waits at a barrier for threads that have ended");
  fibers[current].barrier = id;
  if (++barrier.arrived < (expected ? expected : alive)) return wait_as(WAITS_AT_BARRIER);
  barrier.arrived = 0;
  for (int thread = 0; thread < threads; ++thread) {
    Fiber& fiber = fibers[thread];
    if (fiber.state == WAITS_AT_BARRIER && fiber.barrier == id) fiber.state = RUNNABLE;
  }
}

void sleep() { wait_as(SLEEPS); }

void wake_all() {
  for (int thread = 0; thread < threads; ++thread)
    if (fibers[thread].state == SLEEPS) fibers[thread].state = RUNNABLE;
}

void copy_later(void* target, const void* source, int bytes, int of_source) {
  if ((size_t)target % bytes || (of_source && (size_t)source % bytes))
    stop("copies %d bytes between addresses that are no multiples of them", bytes);
  Fiber& fiber = fibers[current];
  const Copy copy = {target, source, bytes, of_source, fiber.group};
  if (eager)
    copy_now(copy);
  else
    fiber.copies.push_back(copy);
}

void commit_group() { ++fibers[current].group; }

void finish_copies(int groups_left) {
  Fiber& fiber = fibers[current];
  size_t kept = 0;
  for (const Copy& copy : fiber.copies) {
    if (groups_left < 0 || copy.group < fiber.group - groups_left)
      copy_now(copy);
    else
      fiber.copies[kept++] = copy;
  }
  fiber.copies.resize(kept);
}

char* shared_origin;

void* shared_memory() { return shared_start; }

void not_emulated(const char* what) { stop("does what is not emulated: %s", what); }

}  // namespace emulation

extern "C" {

// Returns memory of NaN that ends with a page which nobody may touch; nullptr if there is none.
void* allocate(size_t bytes) {
  const size_t held = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  const size_t pages = (held + PAGE - 1) / PAGE * PAGE;
  char* start = (char*)mapped(pages + PAGE);
  if (!start) return nullptr;
  mprotect(start + pages, PAGE, PROT_NONE);
  memset(start + pages - held, 0xff, held);
  return start + pages - held;
}

void release(void* memory, size_t bytes) {
  const size_t held = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  const size_t pages = (held + PAGE - 1) / PAGE * PAGE;
  munmap((char*)memory + held - pages, pages + PAGE);
}

// Runs a kernel, and returns nullptr or what is wrong with it.
//
// If `descending`, the last thread runs first. If `copies_at_once`, copies to shared memory are
// done when they start, else not before they are waited for. A right kernel cannot tell.
const char* launch(void (*entry)(void**), void** arguments, const Index3* grid,
                   const Index3* block, size_t shared_bytes, int descending, int copies_at_once) {
  threads = block->x * block->y * block->z;
  current = 0;
  if (!reserve() || threads > MOST_THREADS || threads == 0 || shared_bytes > SHARED)
    return "there is no memory for it, or it has too many threads";
  shared_start =
      shared_end - (shared_bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
  kernel = entry;
  kernel_arguments = arguments;
  gridDim = *grid;
  blockDim = *block;
  eager = copies_at_once;

  static char signal_stack[64 << 10];
  stack_t own = {}, before = {};
  own.ss_sp = signal_stack;
  own.ss_size = sizeof signal_stack;
  sigaltstack(&own, &before);
  struct sigaction action = {}, of_faults, of_buses;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &of_faults);
  sigaction(SIGBUS, &action, &of_buses);
  const char* found = nullptr;
  if (sigsetjmp(failed, 1)) {
    found = message;
  } else {
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block(descending);
  }
  sigaction(SIGSEGV, &of_faults, nullptr);
  sigaction(SIGBUS, &of_buses, nullptr);
  sigaltstack(&before, nullptr);
  return found;
}
}
