"""A connection to one node of Ithaca: requests, answers, pushes, and the entries that they bring.

Every wait ends by a deadline, in the seconds of `time.monotonic`. Which node is asked for what, and what is done when it does not
answer or refuses, is the client's part ([ithaca.py](ithaca.py)).
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import ithaca_wire as wire
from ithaca_wire import NONE, BadFrame, Error, Frame, Kind, Lost, Message, Record, Span

CREDIT_BYTES = 1 << 20
SEND_S = 2.0
END_S = 0.25


class Code(IntEnum):
    """Why a node refuses."""

    SEALED, WRONG_EPOCH, NO_ROLE, TOO_LARGE, TOO_SPARSE, FULL, FAILED, BUSY, UNDECODABLE, OTHER_CLUSTER, NO_VERSION = range(1, 12)
    OTHER_NODE, UNWRITTEN, CHECKSUM, GREETING, DAMAGED, NO_POSITIONS, NO_LAYOUT, NO_SUBSCRIPTION, FORGOTTEN = range(12, 21)
    NOT_RELAYED, NO_LEASE, NOT_CHANGED, TOO_FEW_REPLICAS, NOT_COMMITTED, STREAMS_UNKNOWN = range(21, 27)


class Late(Lost):
    """Nothing came in time."""


class Damaged(Error):
    """What a node has sent for a position does not match its checksum."""


class Refused(Error):
    """A node has refused, and did nothing."""

    def __init__(self, code: int, a: int, b: int) -> None:
        name = Code(code).name if code in list(Code) else f"code {code}"
        super().__init__(f"{name} ({a}, {b})")
        self.code, self.a, self.b = code, a, b


class Aborted(Error):
    """Nothing was appended: since the snapshot, at the position, somebody has written what the entry depends on; or so much was written of
    the stream that nobody remembers, and then there is no part."""

    def __init__(self, stream: int, part: int | None, position: int, name: str | None = None) -> None:
        of = f"stream s{stream:x}" if name is None else f"`{name}`"
        parts = f"part {part} of {of} was" if part is not None else f"more than is remembered of {of} was"
        super().__init__(f"aborted: {parts} written at position {position}")
        self.stream, self.part, self.position, self.name = stream, part, position, name


@dataclass(frozen=True)
class Place:
    """Where an entry stands in a stream, and the log position granted for the stream before it, if any was."""

    stream: int
    position: int
    previous: int | None


@dataclass(frozen=True)
class Entry:
    """What a position holds. Only data has bytes, an append that it is, and places in streams."""

    position: int
    kind: Kind
    data: bytes = b""
    client: int = 0
    request: int = 0
    places: tuple[Place, ...] = ()


def checked_endpoints(given: str | Sequence[str]) -> list[str]:
    """The addresses, of which a text has several with commas between them. Raises `ValueError` for what is none."""
    endpoints = [endpoint.strip() for endpoint in given.split(",")] if isinstance(given, str) else list(given)
    if not endpoints:
        raise ValueError('no endpoints: "HOST:PORT" is wanted, or several in a list or with commas between them')
    for endpoint in endpoints:
        host, _, port = endpoint.rpartition(":") if isinstance(endpoint, str) else ("", "", "")
        is_number = port.isascii() and port.isdigit() and int(port) < 1 << 16
        if not host or not is_number or ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f'{endpoint!r} is no endpoint: "HOST:PORT" is wanted, or several in a list or with commas between them')
    return endpoints


class Connection:
    """A greeted connection to one node. Answers come in any order; what nobody waits for any more is dropped."""

    def __init__(self, address: str, client: int, node: int, cluster: int, deadline: float) -> None:
        host, _, port = address.rpartition(":")
        self._buffer = bytearray()
        self._last_id = 0
        self._answers: dict[int, deque[Frame]] = {}
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), seconds_left(deadline))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise Lost(f"{address}: {error}") from error
        greeting = wire.HELLO(version_min=wire.VERSION, version_max=wire.VERSION, client=client, node=node, cluster=cluster)
        self.closed = False
        try:
            self.limits, _ = self.ask(wire.HELLO, greeting, 0, deadline)
        except Error:
            self.close()
            raise

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def send(
        self, message: Message, record: Record, epoch: int, deadline: float, data: bytes = b"", about: int | None = None
    ) -> int:
        """Sends a request, or what is about an earlier one, and returns its id, with which its answers are waited for."""
        if about is None:
            self._last_id += 1
            about = self._last_id
            self._answers[about] = deque()
        try:
            self._socket.settimeout(seconds_left(deadline))
            self._socket.sendall(Frame(message.kind, 0, about, epoch, message.write(record), data).encode())
        except OSError as error:
            self.close()
            raise Lost(str(error)) from error
        return about

    def frame(self, request_id: int, deadline: float) -> Frame:
        """The next frame with this id; `Late` if none comes, and what has come of it until then is kept."""
        while not self._answers[request_id]:
            frame = self._next_frame(deadline)
            if frame.request_id in self._answers:
                self._answers[frame.request_id].append(frame)
        return self._answers[request_id].popleft()

    def is_settled(self, request_id: int, deadline: float) -> bool:
        """Whether by then there is an answer to the request, or will be none."""
        try:
            self._answers[request_id].appendleft(self.frame(request_id, deadline))
        except Lost as trouble:
            return not isinstance(trouble, Late)
        return True

    def answer(self, request_id: int, message: Message, deadline: float) -> tuple[Record, bytes]:
        """The answer to a request, and its data; or `Refused`. A connection whose answers are late is not used again."""
        try:
            frame = self.frame(request_id, deadline)
            return opened(frame, message), frame.data
        except Lost:
            self.close()
            raise
        finally:
            del self._answers[request_id]

    def ask(self, message: Message, record: Record, epoch: int, deadline: float, data: bytes = b"") -> tuple[Record, bytes]:
        return self.answer(self.send(message, record, epoch, deadline, data), message, deadline)

    def _next_frame(self, deadline: float) -> Frame:
        self._receive(wire.HEADER_LEN, deadline)
        length = Frame.length(self._buffer)
        self._receive(length, deadline)
        frame = Frame.decode(bytes(self._buffer[:length]))
        del self._buffer[:length]
        return frame

    def _receive(self, length: int, deadline: float) -> None:
        while len(self._buffer) < length:
            try:
                self._socket.settimeout(seconds_left(deadline))
                received = self._socket.recv(1 << 16)
            except TimeoutError as error:
                raise Late("no answer in time") from error
            except OSError as error:
                raise Lost(str(error)) from error
            if not received:
                raise Lost("the connection has ended")
            self._buffer += received


def opened(frame: Frame, message: Message) -> Record:
    """The body of the answer to such a message; or `Refused`."""
    if frame.kind == wire.REFUSAL.kind:
        refusal = wire.REFUSAL.decode(frame.body)
        raise Refused(refusal.code, refusal.a, refusal.b)
    if frame.kind != message.answer:
        raise BadFrame(f"kind {frame.kind:#x} in answer to {message.kind:#x}")
    return wire.MESSAGES[frame.kind].decode(frame.body)


def seconds_left(deadline: float) -> float:
    """Seconds until then; a socket takes 0 for "do not wait", which then is the same."""
    return max(deadline - time.monotonic(), 0.001)


def with_data(runs: Sequence[Record], data: bytes, start: int, end: int) -> list[tuple[Record, bytes]]:
    """The runs, each with its bytes. They must cover the addresses from `start` on, without gaps and not past `end`."""
    found, at, reached = [], 0, start
    for run in runs:
        length = sum(row.len for row in run.table or ())
        found.append((run, data[at : at + length]))
        if run.addr != reached or run.count > end - reached:
            raise BadFrame(f"addresses {run.addr} and {run.count - 1} more, in an answer from {reached} to {end}")
        at, reached = at + length, reached + run.count
    if at != len(data) or reached == start:
        raise BadFrame(f"{len(data)} bytes of data, {at} by the tables, of {reached - start} addresses")
    return found


def entries_of(run: Record, data: bytes, span: Span) -> Iterator[Entry]:
    """The entries of a run that lies on the stripe of the span, verified."""
    if run.kind != Kind.DATA:
        yield from (Entry(span.position(addr), Kind(run.kind)) for addr in range(run.addr, run.addr + run.count))
        return
    meta, at = wire.META.decode(run.meta), 0
    for addr, row in enumerate(run.table, run.addr):
        entry, position = data[at : at + row.len], span.position(addr)
        if wire.crc32c(entry) != row.crc32c:
            raise Damaged(f"position {position} does not match its checksum")
        places = tuple(
            Place(place.id, place.position, None if place.previous == NONE else place.previous)
            for place in wire.places_at(meta, addr, position)
        )
        yield Entry(position, Kind.DATA, entry, meta.client, wire.request_at(meta, addr), places)
        at += row.len


class Feed:
    """What a unit pushes of one stripe, on a connection of its own."""

    def __init__(self, connection: Connection, span: Span, epoch: int) -> None:
        self._connection, self._span, self._epoch, self._next = connection, span, epoch, span.start
        subscribe = wire.SUBSCRIBE(addr=span.start, credit=CREDIT_BYTES)
        self._id = connection.send(wire.SUBSCRIBE, subscribe, epoch, time.monotonic() + SEND_S)
        self._pushed: Iterator[Entry] = iter(())

    def take(self, position: int, deadline: float) -> Entry:
        """The entry of the position, whatever the unit has pushed before it; `Late` if it is not there by then."""
        while True:
            for entry in self._pushed:
                if entry.position >= position:
                    return entry
            self._pushed = self._push(deadline)

    def _push(self, deadline: float) -> Iterator[Entry]:
        frame = self._connection.frame(self._id, deadline)
        runs = with_data(opened(frame, wire.SUBSCRIBE).runs, frame.data, self._next, NONE)
        if frame.flags != wire.PUSH or any(run.kind == Kind.UNWRITTEN for run, _ in runs):
            raise BadFrame("a push that is none")
        self._next = runs[-1][0].addr + runs[-1][0].count
        credit = wire.CREDIT(credit=len(frame.body) + len(frame.data))
        self._connection.send(wire.CREDIT, credit, self._epoch, time.monotonic() + SEND_S, about=self._id)
        return (entry for run, data in runs for entry in entries_of(run, data, self._span))

    def close(self) -> None:
        """Ends the subscription, and waits for that."""
        try:
            deadline = time.monotonic() + END_S
            self._connection.send(wire.UNSUBSCRIBE, wire.UNSUBSCRIBE(), self._epoch, deadline, about=self._id)
            while not self._connection.frame(self._id, deadline).flags & wire.LAST:
                pass
        except Lost:
            pass
        finally:
            self._connection.close()
