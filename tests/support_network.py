"""A network that fails: a proxy in front of a server, which cuts connections or lets them hang half-open."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_SO_ATTACH_FILTER = 26
_RETURN_NOTHING = (ctypes.c_char * 8).from_buffer_copy(struct.pack("=HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, 0


class Proxy:
    """Forwards connections to a server on 127.0.0.1 until `fail` says so of the bytes that went each way.

    `fail` is asked after each forwarded piece: bytes that the server has sent in all, and the last piece of the client.
    Then every open connection fails, once; later connections are good again.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.fail: Callable[[int, bytes], bool] = lambda sent, said: False
        self.half_open = False
        self.edit: Callable[[bytes], bytes] = lambda said: said  # what a client says
        self.failed = threading.Event()
        self._sent = 0
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def plant(self, fail: Callable[[int, bytes], bool], *, half_open: bool) -> None:
        """Fail at the next moment of which `fail` is true."""
        self._sent, self.half_open, self.fail = 0, half_open, fail
        self.failed.clear()

    def close(self) -> None:
        self._stop.close()
        self._thread.join()

    def _forward(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._listener, self._stopped, *self._pairs], [], [])
                if self._stopped in ready:
                    return
                for one in ready:
                    if one is self._listener:
                        self._accept()
                    elif one in self._pairs:
                        self._piece(one)
        finally:
            for one in (self._listener, self._stopped, *self._pairs, *self._dead):
                one.close()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._server_port))
        self._pairs |= {client: server, server: client}

    def _piece(self, one: socket.socket) -> None:
        other = self._pairs[one]
        try:
            data = one.recv(65536)
            other.sendall(self.edit(data) if one.getpeername()[1] != self._server_port else data)
        except OSError:
            data = b""
        if not data:
            for end in (one, other):
                self._pairs.pop(end).close()
            return
        from_server = one.getpeername()[1] == self._server_port
        self._sent += len(data) * from_server
        if not self.failed.is_set() and self.fail(self._sent, b"" if from_server else data):
            self.failed.set()
            for end in self._pairs:
                (self._hang if self.half_open else _reset)(end)
            self._pairs.clear()

    def _hang(self, end: socket.socket) -> None:
        """Let the kernel drop what arrives without an answer, as if the other machine had lost its power."""
        program = struct.pack("HP", 1, ctypes.addressof(_RETURN_NOTHING))
        end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        self._dead.append(end)


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


@contextmanager
def proxy_before(port: int) -> Iterator[Proxy]:
    """A proxy in front of a server on 127.0.0.1."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
