"""Whether a worker is well, for whatever watches it: a small HTTP answer from a thread of its own.

It does not depend on the event loop being free, and says so when that has been stuck.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.errors import UsageError

PATH = "/health"


def read_address(text: str) -> tuple[str, int]:
    """PORT or HOST:PORT; only this machine is answered unless a host is named. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise UsageError(f"--health {text}: give PORT or HOST:PORT, as 8080 or 0.0.0.0:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def answering(address: tuple[str, int], look: Callable[[], tuple[bool, dict[str, Any]]]) -> Iterator[str]:
    """While inside, GET /health gives what `look` gives: 200 when it is well, else 503. The address that answers."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            well, body = look() if self.path.partition("?")[0] == PATH else (None, {"error": f"only {PATH} is here"})
            data = json.dumps(body).encode()
            self.send_response({True: 200, False: 503, None: 404}[well])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_GET

        def version_string(self) -> str:
            return "holdfast"

        def log_message(self, format: str, *args: Any) -> None:
            """Whoever asks every second is not worth a line."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Whoever hung up before the answer came, as a probe with a time limit does, is not worth a line either."""
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    try:
        server = Server(address, Answer)
    except OSError as error:
        raise UsageError(f"--health {address[0]}:{address[1]}: {error.strerror or error}") from error
    thread = threading.Thread(target=server.serve_forever, name="holdfast-health", daemon=True)
    thread.start()
    try:
        yield f"http://{address[0]}:{server.server_address[1]}{PATH}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
