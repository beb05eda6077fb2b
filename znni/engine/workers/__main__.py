"""``python -m znni.engine.workers DESCRIPTOR`` starts a worker; the descriptor is its socket."""

import sys
from multiprocessing.connection import Connection

from znni.engine.workers.serving import serve

if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
