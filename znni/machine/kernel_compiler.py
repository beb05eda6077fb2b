"""A process that compiles modules of kernels into the user's cache, for one that waits for them."""

from __future__ import annotations

import pickle
import sys

from znni.machine.cuda_kernels import stored


def compile_given() -> None:
    """Compile what standard input lists: sources, architectures and options, pickled."""
    for source, architecture, options in pickle.load(sys.stdin.buffer):
        stored(source, architecture, options)


if __name__ == "__main__":
    compile_given()
