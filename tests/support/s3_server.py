"""An S3 server in this process, which can fail as a real one does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytest.importorskip("moto")
pytest.importorskip("s3fs")

import s3fs
from fsspec.asyn import sync
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    create_backend_app,
)
from werkzeug.serving import WSGIRequestHandler, make_server

ERRORS = {
    "SlowDown": ("503 Slow Down", "Please reduce your request rate."),
    "InternalError": ("500 Internal Server Error", "We encountered an internal error."),
    "AccessDenied": ("403 Forbidden", "Access Denied"),
}

# Says by which of ERRORS a request fails, given its method, its path and its number, or None.
Faults = Callable[[str, str, int], str | None]


class Silent(WSGIRequestHandler):
    """Serves without a log."""

    def log(self, *_arguments: Any) -> None: ...


class S3:
    """The server's application.

    Attributes:
        faults: which requests fail. Nothing of these reaches the store.
        lost: which requests are carried out, and fail then.
        requests: methods and paths of all requests so far.
    """

    def __init__(self) -> None:
        self.faults: Faults = never
        self.lost: Faults = never
        self.requests: list[tuple[str, str]] = []
        self._store = DomainDispatcherApplication(create_backend_app)
        self._one_by_one = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        # S3 looks whether there is an object and makes it in one step. moto does so in two.
        with self._one_by_one:
            count = len(self.requests)
            self.requests.append((method, path))
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if fault := self.faults(method, path, count):
                environ["wsgi.input"].read(length)
                return failed(fault, start)
            if fault := self.lost(method, path, count):
                list(self._store(environ, lambda *_: None))
                return failed(fault, start)
            return list(self._store(environ, start))


def never(_method: str, _path: str, _count: int) -> None:
    return None


def failed(code: str, start: Callable[..., Any]) -> list[bytes]:
    status, message = ERRORS[code]
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def forget_clients() -> None:
    """Close and forget the clients of S3 in this process: they know the server of other tests."""
    for client in s3fs.S3FileSystem._cache.values():
        if getattr(client, "_s3creator", None) is None:  # it was never used
            continue
        end = client._s3creator.__aexit__
        if client.loop is not None and client.loop.is_running():
            sync(client.loop, end, None, None, None)
        else:
            asyncio.run(end(None, None, None))
    s3fs.S3FileSystem.clear_instance_cache()


def serve(application: S3) -> tuple[dict[str, str], Callable[[], None]]:
    """Serve to this machine.

    Returns:
        The environment that clients need, and what stops the server.
    """
    forget_clients()
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        forget_clients()
        server.shutdown()
        thread.join()
        server.server_close()

    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
    }
    return environment, stop
