"""``python -m znni.machine.kernel_compiler NUMBER`` compiles kernels for another process.

That process has the number, has started this one, and waits. What is compiled is kept in the user's
cache.
"""

from __future__ import annotations

import os
import pickle
import sys

from znni.machine.cuda_kernels import stored


def compile_given() -> None:
    """Compile what standard input lists: sources, architectures and options, pickled.

    Once the process that waits is gone, no further module is compiled.
    """
    waits = int(sys.argv[1])
    for source, architecture, options in pickle.load(sys.stdin.buffer):
        if os.getppid() != waits:
            return
        stored(source, architecture, options)


if __name__ == "__main__":
    compile_given()
