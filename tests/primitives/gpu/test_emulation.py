"""The emulation of a GPU finds what is wrong with a kernel or its launch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from emulated_gpu import ORDERS, Pointer, emulated_gpu, needs_emulation
from emulation.kernels_on_host import Kernel, KernelFailed, Order, compiled, on_host

from znni.machine.cuda import cupy

pytestmark = needs_emulation

THREADS = 64

SOURCE = """
// Each thread takes what another wrote, with or without a barrier before.
extern "C" __global__ void neighbours(const float* in, float* out, int waits) {
  extern __shared__ __align__(16) float shared[];
  shared[threadIdx.x] = in[threadIdx.x];
  if (waits) __syncthreads();
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) copied(const float* in, float* out, int waits) {
  extern __shared__ float shared[];
  const unsigned target = (unsigned)__cvta_generic_to_shared(shared + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(in + threadIdx.x)
               : "memory");
  if (waits) {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
  }
  out[threadIdx.x] = shared[threadIdx.x];
}

extern "C" __global__ void some_wait(int wait, int shuffle) {
  if (threadIdx.x < wait) __syncthreads();
  if (threadIdx.x % 32 < shuffle) __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

// The first thread copies bytes, and all may wait for them. `arrivals` are expected.
extern "C" __global__ void counted(const float* in, float* out, int waits, int arrivals) {
  extern __shared__ __align__(16) float shared[];
  __shared__ __align__(8) unsigned long long barriers[1];
  const unsigned barrier = (unsigned)__cvta_generic_to_shared(barriers);
  const unsigned target = (unsigned)__cvta_generic_to_shared(shared);
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
  __syncthreads();
  if (threadIdx.x + 1 == blockDim.x) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(4 * blockDim.x)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(in), "r"(4 * blockDim.x), "r"(barrier)
                 : "memory");
  }
  if (waits)
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" ::"r"(barrier),
                 "r"(0)
                 : "memory");
  out[threadIdx.x] = shared[threadIdx.x];
}

extern "C" __global__ void unknown() { asm volatile("discard.global.L2 [%0], 128;" ::"l"(0)); }

extern "C" __global__ void kinds(const float* place, int number, long long large, float value) {
  *const_cast<float*>(place) = number + large + value;
}
"""


def kernel(name: str, order: Order = ORDERS[0]) -> Kernel:
    return Kernel(compiled(SOURCE), name, order)


def given() -> tuple[Any, Any]:
    """An input and an output of a value for each thread."""
    x = cupy().asarray(np.arange(THREADS, dtype=np.float32))
    return x, cupy().empty(THREADS, np.float32)


def run(name: str, waits: int, order: Order) -> np.ndarray[Any, Any]:
    x, y = given()
    kernel(name, order)((1,), (THREADS,), (x, y, np.int32(waits)), shared_mem=4 * THREADS)
    return np.asarray(y.get())


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_shows(order: Order) -> None:
    with emulated_gpu():
        np.testing.assert_array_equal(run("neighbours", 1, order), np.arange(THREADS)[::-1])
        assert np.isnan(run("neighbours", 0, order)).any()


def test_a_copy_that_nobody_waits_for_shows() -> None:
    with emulated_gpu():
        for order in ORDERS:
            np.testing.assert_array_equal(run("copied", 1, order), np.arange(THREADS))
        assert np.isnan(run("copied", 0, Order(copies_at_once=False))).all()


@pytest.mark.parametrize(
    ("wait", "shuffle", "says"),
    [
        (THREADS - 1, 0, "barrier"),
        (0, 31, "warp"),
        (32, 32, "barrier"),
        (0, 32, None),
        (THREADS, 32, None),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_do_not_come_show(
    wait: int, shuffle: int, says: str | None, order: Order
) -> None:
    arguments = (1,), (THREADS,), (np.int32(wait), np.int32(shuffle))
    with emulated_gpu():
        if says is None:
            kernel("some_wait", order)(*arguments)
        else:
            with pytest.raises(KernelFailed, match=rf"some_wait: thread \d+ of block .*{says}"):
                kernel("some_wait", order)(*arguments)


def test_bytes_that_nobody_waits_for_show() -> None:
    def are_there(order: Order, waits: int, arrivals: int) -> bool:
        x, y = given()
        numbers = np.int32(waits), np.int32(arrivals)
        kernel("counted", order)((1,), (THREADS,), (x, y, *numbers), 4 * THREADS)
        return bool((np.asarray(y) == np.arange(THREADS)).all())

    with emulated_gpu():
        assert all(are_there(order, 1, 1) for order in ORDERS)
        assert not all(are_there(order, 0, 1) for order in ORDERS)
        with pytest.raises(KernelFailed, match="at a barrier that others never reach"):
            are_there(ORDERS[0], 1, 2)
        with pytest.raises(KernelFailed, match="more arrive at a barrier"):
            are_there(ORDERS[0], 1, 0)


@pytest.mark.parametrize("shared", [False, True])
def test_an_access_beyond_an_array_is_named(shared: bool) -> None:
    with emulated_gpu():
        x, y = given()
        threads, bytes_of = (THREADS, 4 * THREADS - 128) if shared else (128, 512)
        with pytest.raises(KernelFailed, match=r"thread \d+ .* belongs to no array"):
            kernel("neighbours")((1,), (threads,), (x, y, np.int32(0)), shared_mem=bytes_of)
        # What is left of that launch does not matter to the next one.
        np.testing.assert_array_equal(run("neighbours", 1, ORDERS[0]), np.arange(THREADS)[::-1])


def test_arrays_are_full_of_nan_and_aligned() -> None:
    with emulated_gpu():
        for size in (1, 3, 1024, 5000):
            array = cupy().empty(size, np.float32)
            assert np.isnan(np.asarray(array)).all()
            assert array.data.ptr % 16 == 0


def test_arguments_are_those_of_the_kernel() -> None:
    with emulated_gpu():
        place = cupy().empty(1, np.float32)
        kernel("kinds")((1,), (1,), (place, np.int32(1), np.int64(2**40), np.float32(0.5)))
        assert place.get()[0] == np.float32(2**40 + 1.5)
        with pytest.raises(KernelFailed, match="kinds takes pilf and was given piif"):
            kernel("kinds")((1,), (1,), (place, np.int32(1), np.int32(2), np.float32(0.5)))
        with pytest.raises(KernelFailed, match="may not take 65536 bytes of shared memory"):
            kernel("unknown")((1,), (1,), (), shared_mem=65536)
        with pytest.raises(KernelFailed, match="array of the host"):
            kernel("kinds")((1,), (1,), (np.zeros(1, np.float32), 1, 2, 3))


def test_instructions_that_are_not_emulated_are_named() -> None:
    with emulated_gpu(), pytest.raises(KernelFailed, match=re.escape("discard.global.L2 [%0]")):
        kernel("unknown")((1,), (1,), ())


def test_assembly_becomes_calls() -> None:
    source = """asm("max.NaN.f32 %0, %1, %2;" : "=f"(least(a, b)) : "f"(":"[0]), "f"(c)); d();"""
    assert 'ptx::max_nan((least(a, b)), (":"[0]), (c)); d();' in on_host(source)


def test_memory_is_named_by_places() -> None:
    with emulated_gpu():
        memory = cupy().cuda.Memory(64)
        first = Pointer(memory, 16)
        assert (first + 8).ptr == memory.ptr + 24
        view = cupy().ndarray((2, 3), np.float32, first, (-12, 4))
        assert view.strides == (-12, 4)


def test_all_processes_of_a_run_compile_a_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(SOURCE)
    monkeypatch.setattr("emulation.kernels_on_host.compiler", lambda: None)
    as_in_another_process = compiled.__wrapped__
    assert as_in_another_process(SOURCE).invoke_copied
    with pytest.raises(AssertionError, match="there is no compiler"):
        compiled("// another")
