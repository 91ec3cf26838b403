"""A proxy in front of a server that cuts its connections at a chosen place of what the server sends.

After an odd number of pieces it resets them, after an even one it closes them as a server does.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PIECE = 2_000
"""Bytes that are passed on at once: a cut may be in the middle of a message."""


class CutProxy:
    """Passes on what goes through it, but for one piece of what comes from the server.

    Attributes:
        port: port on the loopback address.
        pieces: pieces that the server has sent through it since the last `cut_at`.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self.pieces = 0
        self._target = port
        self._cut_at: int | None = None
        self._action: Callable[[], bool] = lambda: True
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._silent: set[socket.socket] = set()

    def cut_at(self, piece: int | None, action: Callable[[], bool] = lambda: True) -> None:
        """Do something before this piece from now on, counted from 1; None for never. A cut if it returns True."""
        with self._lock:
            self.pieces = self.pieces if piece is None else 0
            self._cut_at, self._action = piece, action

    def serve(self, listening: socket.socket) -> None:
        """Accept connections until the socket is closed."""
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_counted: bool = False) -> None:  # noqa: FBT001, FBT002
        with suppress(OSError):
            while piece := source.recv(PIECE):
                if source in self._silent:
                    continue
                if is_counted and self._is_cut():
                    for end in (source, sink) if self.pieces % 2 else ():  # a reset, as if the network had failed
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_cut(self) -> bool:
        with self._lock:
            self.pieces += 1
            return self.pieces == self._cut_at and self._action()

    def silence(self) -> None:
        """Pass nothing more through the connections that there are, which do not end: a network has failed."""
        self._silent |= set(self._open)

    def close(self) -> None:
        """Close all connections."""
        for end in self._open:
            with suppress(OSError):  # it has ended before
                end.shutdown(socket.SHUT_RDWR)  # closing alone does not wake threads that wait for data here
            end.close()


@contextmanager
def cut_proxy(port: int) -> Iterator[CutProxy]:
    """A proxy before a port of the loopback address."""
    proxy = CutProxy(port)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy.port = listening.getsockname()[1]
        threading.Thread(target=proxy.serve, args=(listening,), daemon=True).start()
        yield proxy
    proxy.close()
