"""``python -m znni.engine.workers DESCRIPTOR`` starts a worker; the descriptor is its socket.

With the names of modules after it, it imports these and starts CUDA before its task comes. The
driver starts without the interpreter's lock, so it begins before anything else is imported.
"""

import sys
from contextlib import suppress
from importlib import import_module

from znni.core.loading import begin, own_process
from znni.machine.gpus import begin_cuda, look_at_gpus

if __name__ == "__main__":
    descriptor, *modules = sys.argv[1:]
    own_process()
    begin(begin_cuda if modules else None)
    from multiprocessing.connection import Connection

    from znni.engine.workers.serving import serve

    socket = Connection(int(descriptor))
    if modules:
        with suppress(Exception):  # the task meets the same error, and reports it
            for module in modules:
                import_module(module)
            look_at_gpus()
    serve(socket)
