"""``python -m znni.engine.workers DESCRIPTOR`` starts a worker; the descriptor is its socket.

With the names of modules after it, it imports these and starts CUDA before its task comes.
"""

import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection

from znni.engine.workers.serving import serve
from znni.machine.gpus import look_at_gpus

if __name__ == "__main__":
    descriptor, *modules = sys.argv[1:]
    socket = Connection(int(descriptor))
    if modules:
        with suppress(Exception):  # the task meets the same error, and reports it
            look_at_gpus()
            for module in modules:
                import_module(module)
    serve(socket)
