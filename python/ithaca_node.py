"""A connection to one node of Ithaca: requests, answers, pushes, and the entries that they bring.

Nothing waits but by a deadline, in the seconds of `time.monotonic`. Which node is asked for what, and what is done when it does not
answer or refuses, is the client's part ([ithaca.py](ithaca.py)).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import ithaca_wire as wire
from ithaca_wire import NONE, BadFrame, Error, Frame, Kind, Lost, Message, Record, Span

CREDIT_BYTES = 1 << 20
RECEIVE_BYTES = 1 << 16
END_S = 0.25
# A connection on which nothing moves for so long, though an answer is owed, is given up.
PATIENCE_S = 2.0
# So long a place of an address may take to accept a connection, before its next one is tried.
CONNECT_S = 0.5
# How long one wait for connections is, before what depends on the time is looked at.
STEP_S = 0.1
# The one that costs least to make for one wait, where there is one.
SELECTOR = getattr(selectors, "PollSelector", selectors.DefaultSelector)


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


class Request:
    """A request, and what has come in answer to it that nobody has taken."""

    def __init__(self) -> None:
        self.sent, self.frames = time.monotonic(), deque[Frame]()


class Connection:
    """A connection to one node, which is greeted before it is asked anything. Nothing here waits, but for what takes a deadline: `pump`
    moves what comes and goes. Answers come in any order; what nobody waits for any more is dropped."""

    HELLO = 1  # the id of the greeting, whose answer stays

    def __init__(self, address: str, client: int, node: int, cluster: int) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.trouble: Error | None = None  # why it has ended, if it has
        self.limits: Record | None = None  # what the node has said when it was greeted
        self._socket: socket.socket | None = None
        self._is_connected, self._connects_until = False, 0.0
        self._received, self._unsent, self._held = bytearray(), bytearray(), bytearray()
        self._last_id, self._asked = 0, dict[int, Request]()
        self._owes_since: float | None = None
        greeting = wire.HELLO(version_min=wire.VERSION, version_max=wire.VERSION, client=client, node=node, cluster=cluster)
        self.send(wire.HELLO, greeting, 0)
        try:
            self._places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            self.end(Lost(f"{address}: {error}"))
        else:
            self._connect("no such address")

    @property
    def closed(self) -> bool:
        return self.trouble is not None

    def close(self) -> None:
        self.end(Lost(f"{self.address}: connection closed"))

    def end(self, trouble: Error) -> None:
        """Closes it. That is what its requests end with, but for those that have been answered."""
        self.trouble = self.trouble or trouble
        if self._socket is not None:
            self._socket.close()

    def send(self, message: Message, record: Record, epoch: int, data: bytes = b"", about: int | None = None) -> int:
        """Has a request sent, or what is about an earlier one, and returns its id, with which its answers are waited for."""
        if self.trouble is not None:
            raise self.trouble
        if about is None:
            self._last_id += 1
            about = self._last_id
            self._asked[about] = Request()
            self._owes_since = self._owes_since or time.monotonic()
        frame = Frame(message.kind, 0, about, epoch, message.write(record), data).encode()
        if self.limits is None and message is not wire.HELLO:
            self._held += frame
        else:
            self._unsent += frame
        if self._is_connected:
            self.advance()
        return about

    def greeted(self) -> Record:
        """What the node has said when it was greeted."""
        if self.limits is None:
            raise self.trouble or Late(f"{self.address}: no answer in time")
        return self.limits

    def frame(self, request_id: int, deadline: float) -> Frame:
        """The next frame with this id; `Late` if none comes, and what has come of it until then is kept."""
        while not self.is_settled(request_id) and time.monotonic() < deadline:
            pump([self], deadline)
        if self._asked[request_id].frames:
            return self._asked[request_id].frames.popleft()
        raise self.trouble or Late(f"{self.address}: no answer in time")

    def is_settled(self, request_id: int) -> bool:
        """Whether there is an answer to the request, or will be none."""
        return self.closed or bool(self._asked[request_id].frames)

    def sent_at(self, request_id: int) -> float:
        return self._asked[request_id].sent

    def is_silent(self) -> bool:
        """Whether it has moved nothing for long, though the node owes an answer: nobody may be there any more."""
        return self._owes_since is not None and time.monotonic() - self._owes_since > PATIENCE_S

    def answer(self, request_id: int, message: Message, deadline: float) -> tuple[Record, bytes]:
        """The answer to a request, and its data; or `Refused`. It is not waited for again."""
        try:
            frame = self.frame(request_id, deadline)
            return opened(frame, message), frame.data
        except BadFrame as error:
            self.end(error)
            raise
        finally:
            del self._asked[request_id]

    def ask(self, message: Message, record: Record, epoch: int, deadline: float, data: bytes = b"") -> tuple[Record, bytes]:
        return self.answer(self.send(message, record, epoch, data), message, deadline)

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    def has_unsent(self) -> bool:
        return bool(self._unsent) or not self._is_connected

    def advance(self) -> None:
        """Sends and receives what can be by now."""
        if self.closed or not self._has_connected():
            return
        try:
            self._send_some()
            self._receive_some()
        except OSError as error:
            self.end(Lost(f"{self.address}: {error}"))
        except (Lost, Refused) as trouble:
            self.end(trouble)

    def _connect(self, trouble: str) -> None:
        """Begins to connect to the next place of the address."""
        while self._places and not self.closed:
            family, kind, protocol, _, place = self._places.pop(0)
            if self._socket is not None:
                self._socket.close()
            try:
                self._socket = socket.socket(family, kind, protocol)
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = self._socket.connect_ex(place)
            except OSError as error:
                trouble = str(error)
                continue
            if code in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                self._connects_until = time.monotonic() + CONNECT_S
                return
            trouble = os.strerror(code)
        self.end(Lost(f"{self.address}: {trouble}"))

    def _has_connected(self) -> bool:
        if not self._is_connected and self._socket is not None:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            try:
                self._socket.getpeername()
                self._is_connected = True
            except OSError:
                if code or self._places and time.monotonic() >= self._connects_until:
                    self._connect(os.strerror(code or errno.ETIMEDOUT))
        return self._is_connected

    def _send_some(self) -> None:
        assert self._socket is not None
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
                self._note_moved()
        except BlockingIOError:
            pass

    def _receive_some(self) -> None:
        assert self._socket is not None
        more = RECEIVE_BYTES
        while more == RECEIVE_BYTES:
            try:
                received = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            if not received:
                raise Lost(f"{self.address}: the connection has ended")
            more = len(received)
            self._received += received
            self._take_frames()
            self._note_moved()

    def _take_frames(self) -> None:
        while len(self._received) >= wire.HEADER_LEN and len(self._received) >= (length := Frame.length(self._received)):
            frame = Frame.decode(bytes(self._received[:length]))
            del self._received[:length]
            if self.limits is None:
                self.limits = opened(frame, wire.HELLO)
                self._unsent += self._held
                self._held.clear()
                self._send_some()
            if frame.request_id in self._asked:
                self._asked[frame.request_id].frames.append(frame)

    def _note_moved(self) -> None:
        owes = any(not asked.frames for asked in self._asked.values())
        self._owes_since = time.monotonic() if owes else None


def pump(connections: Iterable[Connection], deadline: float) -> None:
    """Waits until one of the connections can send or receive, at most until then and not for long, and has all of them do so."""
    wait = min(max(deadline - time.monotonic(), 0.0), STEP_S)
    with SELECTOR() as selector:
        open_ones = [connection for connection in connections if not connection.closed]
        for connection in open_ones:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent() else 0)
            selector.register(connection, events)
        if open_ones:
            selector.select(wait)
        else:
            time.sleep(wait)
    for connection in open_ones:
        connection.advance()


def opened(frame: Frame, message: Message) -> Record:
    """The body of the answer to such a message; or `Refused`."""
    if frame.kind == wire.REFUSAL.kind:
        refusal = wire.REFUSAL.decode(frame.body)
        raise Refused(refusal.code, refusal.a, refusal.b)
    if frame.kind != message.answer:
        raise BadFrame(f"kind {frame.kind:#x} in answer to {message.kind:#x}")
    return wire.MESSAGES[frame.kind].decode(frame.body)


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
    """What a unit pushes of one stripe, on a connection of its own. `wait` waits for what comes of a request until a time, or less."""

    def __init__(self, connection: Connection, span: Span, epoch: int, wait: Callable[[Connection, int, float], None]) -> None:
        self._connection, self._span, self._epoch, self._wait, self._next = connection, span, epoch, wait, span.start
        self._id = connection.send(wire.SUBSCRIBE, wire.SUBSCRIBE(addr=span.start, credit=CREDIT_BYTES), epoch)
        self._pushed: Iterator[Entry] = iter(())
        self._is_late = False

    def take(self, position: int, deadline: float) -> Entry:
        """The entry of the position, whatever the unit has pushed before it; `Late` if it is not there by then."""
        while True:
            for entry in self._pushed:
                if entry.position >= position:
                    return entry
            self._pushed = self._push(deadline)

    def _push(self, deadline: float) -> Iterator[Entry]:
        self._wait(self._connection, self._id, deadline)
        self._is_late = not self._connection.is_settled(self._id)
        frame = self._connection.frame(self._id, 0.0)
        runs = with_data(opened(frame, wire.SUBSCRIBE).runs, frame.data, self._next, NONE)
        if frame.flags != wire.PUSH or any(run.kind == Kind.UNWRITTEN for run, _ in runs):
            raise BadFrame("a push that is none")
        self._next = runs[-1][0].addr + runs[-1][0].count
        credit = wire.CREDIT(credit=len(frame.body) + len(frame.data))
        self._connection.send(wire.CREDIT, credit, self._epoch, about=self._id)
        return (entry for run, data in runs for entry in entries_of(run, data, self._span))

    def close(self) -> None:
        """Ends the subscription, and waits for that, but not where nothing came the last time."""
        try:
            self._connection.send(wire.UNSUBSCRIBE, wire.UNSUBSCRIBE(), self._epoch, about=self._id)
            deadline = time.monotonic() + (0.0 if self._is_late else END_S)
            while not self._connection.frame(self._id, deadline).flags & wire.LAST:
                pass
        except (Lost, Refused):
            pass
        finally:
            self._connection.close()
