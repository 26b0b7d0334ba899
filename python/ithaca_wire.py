"""The bytes that a client and a node of Ithaca exchange, as docs/protocol.md describes them.

Each message is a table of its fields, in the order and with the names of the page; one table both reads and writes. What a peer has
sent is never believed: each length is held to its limit before anything is taken for it, and whatever breaks a rule raises
`BadFrame`. Nothing here opens a connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

VERSION = 1
NONE = (1 << 64) - 1
HEADER_LEN = 32
FRAME_MAX = (9 << 20) + (64 << 10)
BODY_MAX = (4 << 20) + (64 << 10)
DATA_MAX = 5 << 20
ENTRY_MAX = 1 << 20
RUN_MAX = 16_384
READ_MAX = 4 << 20
FILL_MAX = 65_536
STREAMS_MAX = 16
CONDITION_PARTS_MAX = 1024
CALLS_MAX = 4096
QUESTION_MAX = 1 << 20
REPLY = 0x8000
PUSH, LAST = 1, 2
FLAGS = 7


class Error(Exception):
    """Whatever a call of a client can end with."""


class Lost(Error):
    """A node did not answer, or sent what is no answer. What became of the request is unknown."""


class BadFrame(Lost):
    """A peer has sent what the protocol does not allow."""


class Kind(IntEnum):
    """What a position holds."""

    DATA, JUNK, TRIMMED, UNWRITTEN = 1, 2, 3, 4


def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of the bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def check_position(position: int) -> None:
    """Raises `ValueError` if there is no such position of the log."""
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < NONE:
        raise ValueError(f"{position!r} is no position of the log, which are from 0 to 2^64 - 2")


# --- How fields are read and written ---------------------------------------------------------------------------------------------


class Reader:
    """Bytes of a peer, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise BadFrame(f"{count} bytes are wanted, {len(taken)} are left")
        self._at += count
        return taken

    def end(self) -> None:
        if self._at < len(self._data):
            raise BadFrame(f"{len(self._data) - self._at} bytes are left over")


class Record(SimpleNamespace):
    """Values by the names of their fields."""


class Field(Protocol):
    """How one value is read, given the fields of its record before it, and written."""

    def read(self, reader: Reader, before: Record) -> Any: ...
    def write(self, value: Any) -> bytes: ...


class Number:
    """An unsigned little-endian number, perhaps one of some only."""

    def __init__(self, size: int, allowed: range | None = None) -> None:
        self._size, self._allowed = size, allowed

    def read(self, reader: Reader, _: Record) -> int:
        value = int.from_bytes(reader.take(self._size), "little")
        if self._allowed is not None and value not in self._allowed:
            raise BadFrame(f"{value} is not in {self._allowed}")
        return value

    def write(self, value: int) -> bytes:
        return value.to_bytes(self._size, "little")


class Zeros:
    """Reserved bytes: sent as 0, and refused as anything else."""

    def __init__(self, size: int) -> None:
        self._size = size

    def read(self, reader: Reader, _: Record) -> None:
        if any(reader.take(self._size)):
            raise BadFrame("a reserved field is not 0")

    def write(self, _: None) -> bytes:
        return bytes(self._size)


class Octets:
    """As many bytes as a field before says."""

    def __init__(self, counter: str) -> None:
        self.counter = counter

    def read(self, reader: Reader, before: Record) -> bytes:
        return reader.take(getattr(before, self.counter))

    def write(self, value: bytes) -> bytes:
        return value


class Items:
    """As many items as a field before says. Each takes bytes, so a count that is a lie ends where the bytes do."""

    def __init__(self, counter: str, item: Field) -> None:
        self.counter, self._item = counter, item

    def read(self, reader: Reader, before: Record) -> list[Any]:
        return [self._item.read(reader, before) for _ in range(getattr(before, self.counter))]

    def write(self, items: list[Any]) -> bytes:
        return b"".join(map(self._item.write, items))


class Listed:
    """A count, perhaps reserved bytes, and so many items."""

    def __init__(self, item: Field, most: int, size: int = 4, reserved: int = 0) -> None:
        self._count, self._zeros, self._items = Number(size, range(most + 1)), Zeros(reserved), Items("count", item)

    def read(self, reader: Reader, before: Record) -> list[Any]:
        count = self._count.read(reader, before)
        self._zeros.read(reader, before)
        return self._items.read(reader, Record(count=count))

    def write(self, items: list[Any]) -> bytes:
        return self._count.write(len(items)) + self._zeros.write(None) + self._items.write(items)


class Blob:
    """A length of four bytes, and so many bytes."""

    def __init__(self, most: int) -> None:
        self._length = Number(4, range(most + 1))

    def read(self, reader: Reader, before: Record) -> bytes:
        return reader.take(self._length.read(reader, before))

    def write(self, value: bytes) -> bytes:
        return self._length.write(len(value)) + value


class Text(Blob):
    """A length of four bytes, and so many bytes of UTF-8; kept as they came, since nothing here depends on them."""

    def read(self, reader: Reader, before: Record) -> str:  # type: ignore[override]
        try:
            return super().read(reader, before).decode()
        except UnicodeDecodeError as error:
            raise BadFrame("no UTF-8") from error

    def write(self, value: str) -> bytes:  # type: ignore[override]
        return super().write(value.encode())


class When:
    """A field that is there only if the one before has such a value; else it is None."""

    def __init__(self, name: str, holds: Callable[[int], bool], field: Field) -> None:
        self._name, self._holds, self._field = name, holds, field

    def read(self, reader: Reader, before: Record) -> Any:
        return self._field.read(reader, before) if self._holds(getattr(before, self._name)) else None

    def write(self, value: Any) -> bytes:
        return b"" if value is None else self._field.write(value)


class Fields:
    """A record: its fields one after the other. Called with values it makes one, and counts for itself."""

    def __init__(self, **fields: Field) -> None:
        self._fields = fields

    def __call__(self, **values: Any) -> Record:
        for name, field in self._fields.items():
            if isinstance(field, (Octets, Items)):
                values[field.counter] = len(values[name])
        return Record(**{name: values.get(name) for name in self._fields})

    def read(self, reader: Reader, _: Record | None = None) -> Record:
        found = Record()
        for name, field in self._fields.items():
            setattr(found, name, field.read(reader, found))
        return found

    def write(self, record: Record) -> bytes:
        return b"".join(field.write(getattr(record, name)) for name, field in self._fields.items())

    def decode(self, data: bytes) -> Record:
        """The record that is the whole of `data`."""
        reader = Reader(data)
        record = self.read(reader)
        reader.end()
        return record


class Message(Fields):
    """The body of a frame of this kind; of a request, with the kind of its answer."""

    def __init__(self, kind: int, answer: int | None = None, **fields: Field) -> None:
        super().__init__(**fields)
        self.kind, self.answer = kind, answer or kind | REPLY


# --- What messages share ---------------------------------------------------------------------------------------------------------

U8, U16, U32, U64, U128 = (Number(size) for size in (1, 2, 4, 8, 16))
FLAG8, FLAG16 = Number(1, range(2)), Number(2, range(2))
STREAM_COUNT = Number(1, range(STREAMS_MAX + 1))

ROW = Fields(len=U32, crc32c=U32)
RANGE = Fields(start=U64, end=U64)
RANGES = Listed(RANGE, 1024)
PLACE = Fields(id=U128, position=U64, previous=U64)
PLACES = Listed(PLACE, 16, size=1, reserved=3)
PLACED = Fields(count=Number(4, range(1, 65_537)), places=PLACES)
META = Fields(
    version=Number(1, range(1, 2)), reserved=Zeros(1), stride=U16, group_count=U16, reserved2=Zeros(2), client=U64, anchor=U64,
    request=U64, first=When("group_count", bool, U64), groups=Items("group_count", PLACED),
)  # fmt: skip
OUTCOME = Fields(
    addr=U64, count=U64, kind=Number(1, range(1, 4)), reserved=Zeros(1), stride=U16, reserved2=Zeros(4), client=U64, request=U64
)
OUTCOMES = Listed(OUTCOME, FILL_MAX, reserved=4)
RUN = Fields(
    addr=U64, count=Number(8, range(1, NONE)), epoch=U64, kind=Number(1, range(1, 5)), reserved=Zeros(1), meta_len=Number(2, range(4097)),
    reserved2=Zeros(4), meta=Octets("meta_len"), table=When("kind", lambda kind: kind == Kind.DATA, Items("count", ROW)),
)  # fmt: skip
PART = Fields(stream=U128, key=U64)
PART_COUNT = Number(2, range(CONDITION_PARTS_MAX + 1))
CONDITION = Fields(
    snapshot=U64, read_count=PART_COUNT, write_count=PART_COUNT, reserved=Zeros(4), reads=Items("read_count", PART),
    writes=Items("write_count", PART),
)  # fmt: skip
GROUP = Fields(
    count=U32, stream_count=STREAM_COUNT, has_condition=FLAG8, reserved=Zeros(2), streams=Items("stream_count", U128),
    condition=When("has_condition", bool, CONDITION),
)  # fmt: skip
GROUP_ANSWER = Fields(
    kind=Number(4, range(1, 4)),
    granted=When("kind", lambda kind: kind == 1, PLACED),
    conflict=When("kind", lambda kind: kind == 2, Fields(stream=U128, key=U64, pos=U64)),
    low_water=When("kind", lambda kind: kind == 3, U64),
)

# --- Messages --------------------------------------------------------------------------------------------------------------------

HELLO = Message(0x0001, version_min=U16, version_max=U16, reserved=Zeros(4), client=U64, node=U64, cluster=U128)
HELLO_OK = Message(
    0x8001, version=U16, reserved=Zeros(2), entry_max=U32, cluster=U128, node=U64, incarnation=U64, write_max=U32, read_max=U32,
    run_max=U32, grant_max=U32,
)  # fmt: skip
TOKEN = Message(0x0002, groups=Listed(GROUP, 1024))
GRANT = Message(0x8002, first=U64, groups=Listed(GROUP_ANSWER, 1024, reserved=4))
WRITE = Message(
    0x0003, addr=U64, count=Number(4, range(1, RUN_MAX + 1)), meta_len=Number(2, range(4097)), reserved=Zeros(2), meta=Octets("meta_len"),
    table=Items("count", ROW),
)  # fmt: skip
WRITTEN = Message(0x8003, outcomes=OUTCOMES)
READ = Message(0x0004, limit_bytes=U32, committed=FLAG8, reserved=Zeros(3), ranges=RANGES)
RUNS = Message(0x8004, runs=Listed(RUN, 4096, reserved=4))
FILL = Message(0x0005, ranges=RANGES)
FILLED = Message(0x8005, outcomes=OUTCOMES)
TRIM = Message(0x0006, ranges=RANGES)
TRIMMED = Message(0x8006)
CHECK = Message(0x0007, extents=RANGES, streams=Listed(U128, 1024))
TAIL = Message(
    0x8007, tail=U64, extents=Listed(Fields(first=U64, watermark=U64, end=U64), 1024),
    streams=Listed(Fields(next=U64, last=U64), 1024),
)  # fmt: skip
GET_LAYOUT = Message(0x0009, epoch=U64)
LAYOUT_RECORD = Message(0x8009, record=Blob(512_000))
SUBSCRIBE = Message(0x000B, answer=0x8004, addr=U64, credit=U64)
CREDIT = Message(0x000C, credit=U64)
UNSUBSCRIBE = Message(0x000D, answer=0x8004)
GET_STATUS = Message(0x000E)
NODE_STATUS = Message(
    0x800E, node=U64, incarnation=U64, roles=U32, offers=U32, durability=Number(1, range(1, 3)), reserved=Zeros(7), cpu_us=U64, rss=U64,
    uptime_ms=U64, tail=U64, watermark=U64, counters=Listed(Fields(name=Text(64), value=U64), 4096),
)  # fmt: skip
APPEND = Message(
    0x000F, client=U64, batch=U64, request=U64, after=U64, count=Number(4, range(1, RUN_MAX + 1)), group_count=Number(4, range(1025)),
    table=Items("count", ROW), groups=Items("group_count", GROUP),
)  # fmt: skip
APPENDED = Message(0x800F, first=U64, count=U32, written=FLAG16, groups=Listed(GROUP_ANSWER, 1024, size=2))
READ_STREAM = Message(0x0017, limit_bytes=U32, flags=U8, reserved=Zeros(1), wait_ms=U16, stream=U128, ranges=RANGES)
STREAM_RUNS = Message(0x8017, count=Number(4, range(4097)), flags=Number(4, range(2)), runs=Items("count", RUN))
WATCH_STREAM = Message(0x0018, answer=0x8007, stream=U128, next=U64, wait_ms=U32, reserved=Zeros(4))
ASK_VIEW = Message(0x0019, stream=U128, length=Number(4, range(QUESTION_MAX + 1)), checksum=U32)
WATCH_LAYOUT = Message(0x001C, answer=0x8009, known=U64, wait_ms=U32, reserved=Zeros(4))
VIEW_ANSWER = Message(0x8019, length=Number(4, range((4 << 20) + 1)), checksum=U32)
REFUSAL = Message(0xFFFF, code=U16, reserved=Zeros(2), reserved2=Zeros(4), a=U64, b=U64)

MESSAGES = {message.kind: message for message in list(globals().values()) if isinstance(message, Message)}


# --- Records of the log and of objects -------------------------------------------------------------------------------------------

RELEASES_MAX = 32_000
RELEASE = Fields(stream=U128, below=U64, log_below=U64)
RELEASES = Fields(count=Number(4, range(1, RELEASES_MAX + 1)), releases=Items("count", RELEASE))
SEEN = Fields(stream=U8, position=U64, digest=U64)
CALL = Fields(
    stream=U8, name_len=Number(1, range(1, 65)), name=Octets("name_len"), arguments_len=U32, arguments=Octets("arguments_len")
)  # fmt: skip
OBJECT_RECORD = Fields(
    client=U64, request=U64, settled=U64, stream_count=Number(1, range(1, STREAMS_MAX + 1)), check_count=STREAM_COUNT,
    call_count=Number(2, range(1, CALLS_MAX + 1)), streams=Items("stream_count", U128), checks=Items("check_count", SEEN),
    calls=Items("call_count", CALL),
)  # fmt: skip


def enveloped(magic: bytes, body: bytes) -> bytes:
    """A record of version 1 with this body."""
    head = magic + (1).to_bytes(2, "little") + bytes(2) + len(body).to_bytes(4, "little")
    return head + body + crc32c(head + body).to_bytes(4, "little")


def opened(magic: bytes, record: bytes) -> bytes:
    """The body of such a record. Raises `BadFrame` if it is none."""
    body = record[12:-4]
    if record != enveloped(magic, body):
        raise BadFrame("no record of this kind")
    return body


def request_at(meta: Record, addr: int) -> int:
    """The request number of the entry at this address of a run with this meta."""
    return int((meta.request + (addr - meta.anchor) * meta.stride) % (1 << 64))


def request_of(outcome: Record, addr: int) -> int:
    """The request number of the entry at this address, one of those that the outcome speaks of."""
    return int((outcome.request + (addr - outcome.addr) * outcome.stride) % (1 << 64))


def places_at(meta: Record, addr: int, position: int) -> tuple[Record, ...]:
    """The places in streams of the entry at the address, which is this position of the log."""
    offset = (request_at(meta, addr) - meta.first) % (1 << 64) if meta.groups else 0
    for group in meta.groups:
        if offset < group.count:
            return tuple(
                PLACE(id=place.id, position=place.position + offset, previous=position - 1 if offset else place.previous)
                for place in group.places
            )
        offset -= group.count
    return ()


class Frame(NamedTuple):
    kind: int
    flags: int
    request_id: int
    epoch: int
    body: bytes
    data: bytes = b""

    def encode(self) -> bytes:
        rest = struct.pack("<HHIQQ", self.kind, self.flags, len(self.body), self.request_id, self.epoch) + self.body
        return struct.pack("<II", len(self.body) + len(self.data), crc32c(rest)) + rest + self.data

    @classmethod
    def length(cls, header: bytes | bytearray) -> int:
        """How long the frame is that begins with these 32 bytes, all of it. Nobody waits for what no frame can be."""
        frame_len, body_len = struct.unpack_from("<I8xI", header)
        if frame_len > FRAME_MAX or body_len > min(BODY_MAX, frame_len) or frame_len - body_len > DATA_MAX:
            raise BadFrame(f"a frame of {frame_len} bytes, {body_len} of them its body")
        return HEADER_LEN + int(frame_len)

    @classmethod
    def decode(cls, frame: bytes) -> Frame:
        """The frame that is the whole of `frame`."""
        if len(frame) < HEADER_LEN or len(frame) != cls.length(frame):
            raise BadFrame("a frame that is cut off")
        _, checksum, kind, flags, body_len, request_id, epoch = struct.unpack_from("<IIHHIQQ", frame)
        body_end = HEADER_LEN + body_len
        if checksum != crc32c(frame[8:body_end]):
            raise BadFrame("a frame that does not match its checksum")
        if flags & ~FLAGS:
            raise BadFrame(f"flags {flags:#x}")
        return cls(kind, flags, request_id, epoch, frame[HEADER_LEN:body_end], frame[body_end:])


# --- The layout ------------------------------------------------------------------------------------------------------------------

STRIPE_ADDRESSES = 1 << 44
FORWARDER = 8

LAYOUT = Fields(
    magic=Number(4), version=Number(2, range(1, 2)), reserved=Zeros(2), body_len=U32, cluster=U128, epoch=U64, sequencer=U64,
    next_base=U64, replicas=U16, min_replicas=U16, spread_count=U16, node_count=Number(2, range(1025)),
    range_count=Number(2, range(1, 8193)), tail_count=Number(2, range(65)),
    nodes=Items("node_count", Fields(id=U64, roles=U32, state=Number(1, range(4)), address=Text(256))),
    spreads=Items("spread_count", Listed(Listed(U64, 8), 256)),
    ranges=Items("range_count", Fields(start=U64, spread=U16, bases=Listed(U64, 256, size=2))),
    end=U64, tails=Items("tail_count", Fields(epoch=U64, tail=U64)), checksum=U32,
)  # fmt: skip


class Span(NamedTuple):
    """Consecutive addresses [start, end) of a stripe. The first is the position `first` of the log, each next one `stride` further."""

    replicas: list[int]
    start: int
    end: int
    first: int
    stride: int

    def position(self, addr: int) -> int:
        return self.first + (addr - self.start) * self.stride

    def cut(self, start: int, end: int) -> Span:
        return Span(self.replicas, start, end, self.position(start), self.stride)

    def pieces(self, most: int) -> Iterator[Span]:
        """The same addresses, in pieces of at most so many."""
        for start in range(self.start, self.end, most):
            yield self.cut(start, min(start + most, self.end))


IN_USE = 0


def _mix(bits: int) -> int:
    """A number of 64 bits of which each bit depends on all of these: a step of SplitMix64."""
    bits = (bits + 0x9E3779B97F4A7C15) & NONE
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & NONE
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & NONE
    return bits ^ bits >> 31


def weight(node: int, stream: int) -> int:
    """How soon a node is asked about the object of a stream: the one of the highest weight first."""
    low, high = stream & NONE, stream >> 64
    return _mix(_mix(low ^ (high << 32 & NONE | high >> 32)) ^ _mix(node))


class Layout:
    """Which positions lie on which units in an epoch, who the sequencer is, and where earlier epochs ended."""

    def __init__(self, record: bytes) -> None:
        found = LAYOUT.decode(record)
        if found.magic != int.from_bytes(b"ITly", "little") or found.body_len != len(record) - 16:
            raise BadFrame("no layout")
        if found.checksum != crc32c(record[:-4]):
            raise BadFrame("a layout that does not match its checksum")
        self.cluster: int = found.cluster
        self.epoch: int = found.epoch
        self.sequencer: int = found.sequencer
        self.nodes: dict[int, Record] = {node.id: node for node in found.nodes}
        self.tails: dict[int, int] = {tail.epoch: tail.tail for tail in found.tails}
        self._ends = [later.start for later in found.ranges[1:]] + [found.end]
        self._ranges = [(one, found.spreads[one.spread] if one.spread < len(found.spreads) else []) for one in found.ranges]
        self._check()

    def _check(self) -> None:
        for (one, stripes), end in zip(self._ranges, self._ends, strict=True):
            if one.start >= end or not stripes or len(one.bases) not in (1, len(stripes)):
                raise BadFrame("a range of a layout that cannot be")
            if any(not replicas or any(node not in self.nodes for node in replicas) for replicas in stripes):
                raise BadFrame("a stripe on nodes that the layout does not list")
        if self.sequencer not in self.nodes:
            raise BadFrame("a sequencer that the layout does not list")

    @property
    def first(self) -> int:
        """Everything below is trimmed."""
        return int(self._ranges[0][0].start)

    @property
    def active(self) -> int:
        """Where the last range begins, in which positions are granted."""
        return int(self._ranges[-1][0].start)

    @property
    def stripes(self) -> int:
        """How many stripes the last range has."""
        return len(self._ranges[-1][1])

    @property
    def tail(self) -> int:
        """Where the epoch before ended. Nothing is granted below it in this one."""
        return self.tails.get(self.epoch - 1, 0)

    @property
    def forwards(self) -> bool:
        """Whether batches go whole to the sequencer."""
        return bool(self.nodes[self.sequencer].roles & FORWARDER)

    def in_turn(self, stream: int) -> list[int]:
        """The nodes in the order in which every program asks them about the object of a stream, so that the same one has it in memory. Those
        that the cluster does without come last."""
        return sorted(self.nodes, key=lambda node: (self.nodes[node].state != IN_USE, -weight(node, stream), node))

    def spans(self, first: int, end: int) -> list[Span]:
        """The addresses of the positions [first, end), by stripe. Positions below the layout's first one have none."""
        found = []
        for (one, stripes), range_end in zip(self._ranges, self._ends, strict=True):
            lowest, highest = max(first, one.start), min(end, range_end)
            for number, replicas in enumerate(stripes if lowest < highest else []):
                # Rows of the range below these are those whose position on this stripe is below the bound.
                start, stop = (-(-(bound - one.start - number) // len(stripes)) for bound in (lowest, highest))
                if start < stop:
                    base = one.bases[number] if len(one.bases) > 1 else one.bases[0] + number * STRIPE_ADDRESSES
                    found.append(Span(replicas, base + start, base + stop, one.start + start * len(stripes) + number, len(stripes)))
        return found


# --- Names of streams ------------------------------------------------------------------------------------------------------------

NAMES, RELEASED = 0, 1
_BLAKE3_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_BLAKE3_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_BLAKE3_MIXES = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8


def _rotate(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & 0xFFFFFFFF


def _compress(chaining: tuple[int, ...], block: bytes, flags: int) -> tuple[int, ...]:
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    state = [*chaining, *_BLAKE3_IV[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for mix, (a, b, c, d) in enumerate(_BLAKE3_MIXES):
            for word, turn_d, turn_b in ((words[2 * mix], 16, 12), (words[2 * mix + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & 0xFFFFFFFF
                state[d] = _rotate(state[d] ^ state[a], turn_d)
                state[c] = (state[c] + state[d]) & 0xFFFFFFFF
                state[b] = _rotate(state[b] ^ state[c], turn_b)
        words = [words[index] for index in _BLAKE3_ORDER]
    return tuple(state[index] ^ state[index + 8] for index in range(8))


def stream_id(name: str) -> int:
    """The id of the stream of this name: the first 16 bytes of its BLAKE3 hash. A name has 1 to 255 bytes, which is one chunk."""
    text = name.encode()
    if not 1 <= len(text) <= 255:
        raise ValueError(f"a name of {len(text)} bytes, not of 1 to 255")
    blocks = [text[at : at + 64] for at in range(0, len(text), 64)]
    chaining: tuple[int, ...] = _BLAKE3_IV
    for number, block in enumerate(blocks):
        flags = (0 if number else _CHUNK_START) | (_CHUNK_END | _ROOT if number == len(blocks) - 1 else 0)
        chaining = _compress(chaining, block, flags)
    return int.from_bytes(struct.pack("<4I", *chaining[:4]), "little")
