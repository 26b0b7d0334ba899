"""A client of Ithaca in Python's standard library, with blocking sockets, written from docs/protocol.md and the pages below it.

What it promises: an append that has returned is on stable storage on every replica, and stands in the log once, whatever had to be
sent again; every entry that is read matches its checksum; every call ends by its deadline. One thread uses a `Client`.
What it does not do: relayed writes, trimming of streams, objects but for maps, orders to a cluster.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import ithaca_wire as wire
from ithaca_batch import Batch, Releases, batches, between, check_entries, check_granted, stream_ids, within
from ithaca_learn import Learner
from ithaca_map import Map, Transaction, transact
from ithaca_node import Aborted, Code, Connection, Damaged, Entry, Feed, Late, Refused, checked_endpoints, entries_of, with_data
from ithaca_wire import FILL_MAX, NONE, READ_MAX, Error, Kind, Layout, Lost, Message, Record, Span

BATCH_ENTRIES = 1024
BATCH_BYTES = 1 << 20
PIPELINE = 8
SEARCH_MAX = 1 << 20
CHUNK = 4096
READ_PATIENCE_S = 0.25
HOLE_WAIT_S = 0.5
PAUSE_S = 0.05
Result = TypeVar("Result")


# Another layout, or a while, may mend these.
PASSING = {
    Code.SEALED, Code.WRONG_EPOCH, Code.NO_ROLE, Code.FAILED, Code.BUSY, Code.OTHER_NODE, Code.CHECKSUM, Code.NO_LAYOUT, Code.NO_LEASE,
    Code.TOO_FEW_REPLICAS, Code.NOT_COMMITTED, Code.STREAMS_UNKNOWN,
}  # fmt: skip


class DeadlinePassed(Error):
    """The call's time is over, and it certainly appended nothing. The cause is what stood in its way."""


class OutcomeUnknown(Error):
    """The append may stand in the log, at `after` or above, and may yet come to stand there."""

    def __init__(self, after: int) -> None:
        super().__init__(f"outcome unknown, at or above position {after}")
        self.after = after


def _passing(trouble: Lost | Refused) -> bool:
    """Whether to try again, in another layout or after a while, may help. A node that is of no cluster has lost the one that it was of."""
    if isinstance(trouble, Lost):
        return True
    return trouble.code in PASSING or (trouble.code, trouble.a, trouble.b) == (Code.OTHER_CLUSTER, 0, 0)


def _ranges(message: Message, start: int, end: int) -> Record:
    return message(ranges=[wire.RANGE(start=start, end=end)])


class Client:
    """A client of the log that is served at any of these addresses ("host:port"; several may be one text, with
    commas between them). `timeout` is how many seconds a call may take.

    Calls that only look, fill or trim are repeated in newer layouts until their time is over, and then raise `DeadlinePassed`. An
    append whose fate is not known by then raises `OutcomeUnknown`, and is never sent again. A node that is silent keeps no call waiting once
    the cluster goes on without it. Raises `ValueError` if endpoints are none, or tell of different clusters.
    """

    def __init__(self, endpoints: str | Sequence[str], timeout: float = 10.0) -> None:
        checked = checked_endpoints(endpoints)
        self._timeout = timeout
        self._id = secrets.randbelow(NONE - 1) + 1
        self._next_request = 0
        self._next_batch = 0
        self._caller, self._next_call = self._id, 0
        self._named: set[int] = set()
        self.known_maps: set[str] = set()
        self._granted_to: tuple[int, int] = (0, 0)
        self._learner = Learner(checked, self._id, time.monotonic() + timeout)

    def close(self) -> None:
        self._learner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> int:
        """The number by which entries name this client."""
        return self._id

    @property
    def layout(self) -> Layout:
        """The newest layout that the client knows."""
        return self._layout

    @property
    def _layout(self) -> Layout:
        return self._learner.layout

    # --- Looking ---------------------------------------------------------------------------------------------------------------

    def status(self, node: int) -> Record:
        """What a node says of itself: `wire.NODE_STATUS`."""
        return self._repeated(lambda layout, deadline: self._ask(node, wire.GET_STATUS, wire.GET_STATUS(), layout, deadline)[0])

    def tail(self) -> int:
        """The position that comes next: above everything that was acknowledged before the call."""
        return int(self._repeated(lambda layout, deadline: self._sequencer_tail(layout, [], deadline)).tail)

    def first(self) -> int:
        """The lowest position that is not trimmed; the tail if there is none."""

        def attempt(layout: Layout, deadline: float) -> int:
            tail = int(self._sequencer_tail(layout, [], deadline).tail)
            lowest = tail
            for span in layout.spans(layout.first, tail):
                found = self._extent(layout, span, deadline).first
                lowest = min(lowest, span.position(found) if found < span.end else tail)
            return lowest

        return self._repeated(attempt)

    def read(self, position: int) -> Entry:
        """What the position holds. It fills nothing: what is not written is of the kind `UNWRITTEN`."""
        wire.check_position(position)
        return self._repeated(lambda layout, deadline: self._read_positions(layout, position, position + 1, deadline))[0]

    def read_range(self, first: int, end: int) -> Iterator[Entry]:
        """What each of the positions [first, end) holds, in order, as `read` says it."""
        wire.check_position(first)
        for start in range(first, end, CHUNK):
            stop = min(start + CHUNK, end)
            yield from self._repeated(lambda layout, deadline: self._read_positions(layout, start, stop, deadline))

    def follow(self, first: int = 0, timeout: float | None = None) -> Generator[Entry, None, None]:
        """Every position from `first` on, in order, as soon as it is decided; holes that stay are filled. Ends when the log does and for
        `timeout` seconds nothing has come; `DeadlinePassed` if for so long nobody says so."""
        wire.check_position(first)
        position, news, quiet = first, time.monotonic(), False
        while not quiet:
            end = min(position + CHUNK, self._layout.active)
            if position < end:
                yield from self._settled(position, end)
                position, news = end, time.monotonic()
            else:
                position, news, quiet = yield from self._pushed(position, news, timeout)

    # --- Deciding --------------------------------------------------------------------------------------------------------------

    def fill(self, position: int) -> Entry:
        """Makes junk of the position if it holds nothing, and says what it holds then. Refuses more than 65,536 above the tail."""
        wire.check_position(position)
        if position >= self.tail() + FILL_MAX:
            raise Refused(Code.UNWRITTEN, position, 0)
        self._repeated(lambda layout, deadline: self._decide(layout, position, position + 1, deadline))
        return self.read(position)

    def trim(self, position: int) -> None:
        """Gives up the position for ever. One that is not decided yet is filled first."""
        wire.check_position(position)
        self._trim_range(position, position + 1)

    def trim_prefix(self, end: int) -> None:
        """Gives up all positions below `end` for ever. What is said there of streams is appended once more before, since they may go on: their
        names, and what they have released; those of which nothing is left are released up to there. On a log without room it is given up too."""
        wire.check_position(end)
        tail = self.tail()
        if end > tail:
            raise Refused(Code.UNWRITTEN, tail, 0)
        try:
            names = {entry.data for entry in self._stream_entries(wire.NAMES, 0, end)}
            releases = Releases(entry.data for entry in self._stream_entries(wire.RELEASED, 0, end))
            for name in names | {entry.data for entry in self._stream_entries(wire.NAMES, end, tail)}:
                self._release_ended(releases, name.decode(errors="replace"), end)
            self._append_to(sorted(names), [wire.NAMES])
            self._append_to(releases.records(), [wire.RELEASED])
        except Refused as refused:
            if refused.code != Code.FULL:
                raise
        self._trim_range(0, end)

    def _release_ended(self, releases: Releases, name: str, end: int) -> None:
        """Releases all of a stream whose newest entry stands below `end`. After a change of sequencer it may be told to end higher than that."""
        (following, last), stream = self.stream_end(name), wire.stream_id(name)
        if last is not None and (last < end or following > last):
            newest = [self.read(last)]
            if all(place.stream != stream for place in newest[0].places):
                newest = self._stream_entries(stream, 0, last + 1)[-1:]
            if newest and newest[0].position < end:
                releases.add(stream, following, newest[0].position + 1)

    def _trim_range(self, first: int, end: int) -> None:
        meant, tail = self._repeated(self._reached)
        if end > tail:
            raise Refused(Code.UNWRITTEN, tail, 0)

        def attempt(layout: Layout, deadline: float) -> None:
            # A later epoch may have begun below, and what that grants there is not meant.
            if layout.tails.get(meant.epoch, end) < end:
                raise Refused(Code.UNWRITTEN, layout.tails[meant.epoch], 0)
            for span in layout.spans(first, end):
                trim = _ranges(wire.TRIM, span.start, span.end)
                for replica in span.replicas:
                    try:
                        self._ask(replica, wire.TRIM, trim, layout, deadline)
                    except Refused as refused:
                        if refused.code != Code.UNWRITTEN:
                            raise
                        for piece in span.cut(max(span.start, refused.a), span.end).pieces(FILL_MAX):
                            self._decide_span(layout, piece, deadline)
                        self._ask(replica, wire.TRIM, trim, layout, deadline)

        self._repeated(attempt)

    # --- Appending -------------------------------------------------------------------------------------------------------------

    def append(self, entry: bytes, streams: Sequence[str] = ()) -> int:
        """Appends the entry, to the log and to all of these streams, and returns its position. It is then on stable storage on every
        replica."""
        return self.append_many([entry], streams)[0]

    def append_many(self, entries: Sequence[bytes], streams: Sequence[str] = (), tokens: bool = False) -> list[int]:
        """Appends the entries, several batches at a time, and returns their positions. They rise, but for entries that had to be
        appended again. With `tokens` the client writes them itself at positions that it was granted; else the sequencer does, where
        the layout says that it can. If it raises, entries may have been appended, and `OutcomeUnknown` says where they may be; not if it
        raises `ValueError`, for an entry that is too long, or for streams that are more than 16 or the same."""
        return self._append_named(entries, streams, tokens)

    def _append_named(
        self, entries: Sequence[bytes], names: Sequence[str], tokens: bool = False, condition: Record | None = None
    ) -> list[int]:
        # A name is there for good, so nothing is named before all is looked at.
        streams = stream_ids(names)
        check_entries(entries, self._repeated(self._limits).entry_max)
        for name, stream in zip(names, streams, strict=True) if entries else ():
            self._name(name, stream)
        return self._append_to(entries, streams, tokens, condition)

    def _append_to(
        self, entries: Sequence[bytes], streams: Sequence[int], tokens: bool = False, condition: Record | None = None
    ) -> list[int]:
        deadline = time.monotonic() + self._timeout
        limits = self._repeated(self._limits, deadline)
        positions: list[int] = []
        sent: deque[tuple[Batch, tuple[Connection, int] | None]] = deque()
        for part in batches(entries, min(BATCH_BYTES, limits.write_max), min(BATCH_ENTRIES, limits.run_max)):
            batch = self._batch(part, streams, condition)
            sent.append((batch, None if tokens or not batch.layout.forwards else self._send_batch(batch, deadline)))
            if len(sent) == PIPELINE:
                positions += self._appended(*sent.popleft(), tokens, deadline)
        while sent:
            positions += self._appended(*sent.popleft(), tokens, deadline)
        return positions

    def _limits(self, layout: Layout, deadline: float) -> Record:
        connection = self._connect(layout, layout.sequencer)
        self._learner.wait(connection, connection.HELLO, layout, deadline)
        return connection.greeted()

    def _batch(self, entries: Sequence[bytes], streams: Sequence[int], condition: Record | None = None) -> Batch:
        layout = self._layout
        batch = Batch(layout, self._next_batch, self._next_request, self._granted_in(layout), entries, streams, condition)
        self._next_batch += 1
        self._next_request += len(entries)
        return batch

    def _appended(self, batch: Batch, sent: tuple[Connection, int] | None, tokens: bool, deadline: float) -> list[int]:
        """The positions of a batch that was sent, or is now. Entries of it that certainly stand nowhere become batches of their own."""
        entries = batch.entries
        found: list[int | None] = [None] * len(entries)
        missing = list(range(len(entries)))
        while True:
            whole = batch.layout.forwards and not tokens
            positions = self._append_whole(batch, sent, deadline) if whole else self._append_by_tokens(batch, deadline)
            for index, position in zip(missing, positions, strict=True):
                found[index] = position
            missing = [index for index, position in enumerate(found) if position is None]
            if not missing:
                return [position for position in found if position is not None]
            if time.monotonic() > deadline:
                raise DeadlinePassed("some entries stand nowhere")
            batch, sent = self._batch([entries[index] for index in missing], batch.streams, batch.condition), None

    def _send_batch(self, batch: Batch, deadline: float) -> tuple[Connection, int] | None:
        """Sends a copy of the batch to the sequencer. None if it may have been sent and no answer will come."""
        groups = batch.groups() if batch.streams else []
        append = wire.APPEND(
            client=self._id, batch=batch.number, request=batch.request, after=batch.after, table=batch.table(), groups=groups
        )
        try:
            connection = self._connect(batch.layout, batch.layout.sequencer)
            return connection, connection.send(wire.APPEND, append, batch.layout.epoch, b"".join(batch.entries))
        except Lost:
            return None

    def _append_whole(self, batch: Batch, sent: tuple[Connection, int] | None, deadline: float) -> list[int | None]:
        """Where the entries of the batch stand, None for those that certainly stand nowhere, and never will under their numbers."""
        doubt = False  # whether a copy may have been granted positions that nobody told of
        while True:
            sent = sent or self._send_batch(batch, deadline)
            try:
                if sent is None:
                    raise Lost("the batch could not be sent")
                answer, _ = self._learner.answer(*sent, wire.APPEND, batch.layout, deadline)
            except (Lost, Refused) as error:
                trouble = error
            else:
                return self._told(batch, answer, deadline)
            if isinstance(trouble, Refused) and trouble.code == Code.FORGOTTEN:
                if doubt:
                    return self._search(batch, batch.after, trouble.a, deadline)
                self._note_granted(*self._repeated(self._reached))
                return [None] * len(batch.entries)
            if not doubt and not _passing(trouble):
                raise trouble
            doubt = doubt or isinstance(trouble, Lost)
            sent = None
            try:
                self._look_again(batch.layout, deadline, trouble)
            except DeadlinePassed as error:
                raise (OutcomeUnknown(batch.after) if doubt else error) from trouble
            if self._layout.epoch != batch.layout.epoch:
                return (
                    self._search(batch, batch.after, self._decided_tail(batch), deadline) if doubt else [None] * len(batch.entries)
                )

    def _told(self, batch: Batch, answer: Record, deadline: float) -> list[int | None]:
        check_granted(batch, answer.groups)
        granted = all(group.granted for group in answer.groups)
        if answer.count != len(batch.entries) or len(answer.groups) != bool(batch.streams) or not granted:
            raise Lost("an answer that is about another batch")
        self._note_granted(batch.layout, answer.first + answer.count)
        if answer.written:
            return list(range(answer.first, answer.first + answer.count))
        return self._write_batch(batch, answer.first, answer.groups, True, deadline)

    def _append_by_tokens(self, batch: Batch, deadline: float) -> list[int | None]:
        """As `_append_whole`, in the way of tokens: positions are asked for, and written on each replica."""
        try:
            grant, _ = self._ask(batch.layout.sequencer, wire.TOKEN, wire.TOKEN(groups=batch.groups()), batch.layout, deadline)
        except (Lost, Refused) as trouble:
            if not _passing(trouble):
                raise
            self._look_again(batch.layout, deadline, trouble)
            return [None] * len(batch.entries)
        check_granted(batch, grant.groups)
        if len(grant.groups) != 1 or not grant.groups[0].granted or grant.groups[0].granted.count != len(batch.entries):
            raise Lost("a grant of something else")
        self._note_granted(batch.layout, grant.first + len(batch.entries))
        return self._write_batch(batch, grant.first, grant.groups, False, deadline)

    def _note_granted(self, layout: Layout, end: int) -> None:
        self._granted_to = max(self._granted_to, (layout.epoch, end))

    def _granted_in(self, layout: Layout) -> int:
        """A position that every grant to come of the layout's epoch is at or above."""
        epoch, end = self._granted_to
        return max(end, layout.tail) if epoch == layout.epoch else layout.tail

    def _write_batch(self, batch: Batch, first: int, groups: Sequence[Record], earlier: bool, deadline: float) -> list[int | None]:
        """Writes the batch at its positions, in the epoch in which they were granted, as often as it takes; or decides them. `earlier`
        says that it may have been written there before: then what is trimmed may have been its entry, which others have read."""
        table = batch.table()
        while True:
            try:
                taken: set[int] = set()
                for span in batch.layout.spans(first, first + len(batch.entries)):
                    taken |= self._write_span(batch, first, groups, table, span, earlier, deadline)
                return [None if first + index in taken else first + index for index in range(len(batch.entries))]
            except (Lost, Refused) as trouble:
                earlier = True
                try:
                    self._look_again(batch.layout, deadline, trouble)
                except DeadlinePassed as error:
                    raise OutcomeUnknown(first) from error
                if _passing(trouble) and self._layout.epoch == batch.layout.epoch:
                    continue
                positions = self._search(batch, first, first + len(batch.entries), deadline)
                if not _passing(trouble) and None in positions:
                    raise
                return positions

    def _write_span(
        self, batch: Batch, first: int, groups: Sequence[Record], table: list[Record], span: Span, earlier: bool, deadline: float
    ) -> set[int]:
        """Writes what lies on one stripe, replica after replica. Returns the positions that the first one had given to others."""
        placed = [group.granted for group in groups] if batch.streams else []
        meta = {
            "version": 1, "stride": span.stride, "client": self._id, "anchor": span.start, "request": batch.request + span.first - first,
            "first": batch.request if placed else None, "groups": placed,
        }  # fmt: skip
        lost: set[int] = set()
        for replica in span.replicas:
            for start, end in between(span.start, span.end, lost):
                indexes = range(span.position(start) - first, span.position(end) - first, span.stride)
                write = wire.WRITE(addr=start, meta=wire.META.write(wire.META(**meta)), table=[table[index] for index in indexes])
                data = b"".join(batch.entries[index] for index in indexes)
                answer, _ = self._ask(replica, wire.WRITE, write, batch.layout, deadline, data)
                others = self._others(answer.outcomes, span, batch.request - first)
                trimmed = any(held.kind == Kind.TRIMMED for held in answer.outcomes)
                if others and (replica != span.replicas[0] or trimmed and earlier):
                    raise OutcomeUnknown(span.position(min(others)))
                lost |= others
        return {span.position(addr) for addr in lost}

    def _others(self, outcomes: Sequence[Record], span: Span, number: int) -> set[int]:
        """The addresses of a span that hold something else than the append whose request number is their position and `number`."""
        return {
            addr
            for held in outcomes
            for addr in within(held, span)
            if (held.kind, held.client, wire.request_of(held, addr)) != (Kind.DATA, self._id, span.position(addr) + number)
        }

    def _decided_tail(self, batch: Batch) -> int:
        if batch.layout.epoch not in self._layout.tails:
            raise OutcomeUnknown(batch.after)
        return self._layout.tails[batch.layout.epoch]

    def _search(self, batch: Batch, first: int, end: int, deadline: float) -> list[int | None]:
        """Decides the positions [first, end), all of those where entries of the batch may stand, and says where they do. At or above
        the decided tail of the batch's epoch none of them stands, or ever will."""
        end = min(end, self._layout.tails.get(batch.layout.epoch, end))
        if end - first > SEARCH_MAX or first < self._layout.first:
            raise OutcomeUnknown(first)
        try:
            held = self._repeated(lambda layout, until: self._decide(layout, first, end, until), deadline)
        except (DeadlinePassed, Refused) as error:
            raise OutcomeUnknown(first) from error
        positions: list[int | None] = [None] * len(batch.entries)
        for position, _, client, request in held:
            if client == self._id and 0 <= request - batch.request < len(batch.entries):
                positions[request - batch.request] = position
        if None in positions and any(kind == Kind.TRIMMED for _, kind, _, _ in held):
            raise OutcomeUnknown(first)
        return positions

    def _decide(self, layout: Layout, first: int, end: int, deadline: float) -> list[tuple[int, Kind, int, int]]:
        """Makes junk of every hole in [first, end), on every replica. Returns what the others hold: position, kind, client, request."""
        held = []
        for span in layout.spans(first, end):
            for piece in span.pieces(FILL_MAX):
                held += self._decide_span(layout, piece, deadline)
        return held

    def _decide_span(self, layout: Layout, span: Span, deadline: float) -> list[tuple[int, Kind, int, int]]:
        # Asked first: what the last replica has resolved by now is the same on all of them, but for trims on their way down.
        resolved = self._extent(layout, span, deadline).watermark
        filled, _ = self._ask(span.replicas[0], wire.FILL, _ranges(wire.FILL, span.start, span.end), layout, deadline)
        held = [
            (span.position(addr), Kind(outcome.kind), outcome.client, wire.request_of(outcome, addr))
            for outcome in filled.outcomes
            for addr in within(outcome, span)
        ]
        for replica in span.replicas[1:]:
            for outcome in filled.outcomes:
                if outcome.kind == Kind.TRIMMED:
                    self._copy_run(layout, replica, outcome, b"", deadline)
        self._copy_down(layout, span, max(span.start, resolved), deadline)
        return held

    def _copy_down(self, layout: Layout, span: Span, start: int, deadline: float) -> None:
        """Makes each later replica hold what the first one holds from the address on, one after the other."""
        while len(span.replicas) > 1 and start < span.end:
            runs = self._read_runs(layout, span.replicas[0], start, span.end, False, deadline)
            for replica in span.replicas[1:]:
                for run, data in runs:
                    self._copy_run(layout, replica, run, data, deadline)
            start = runs[-1][0].addr + runs[-1][0].count

    def _copy_run(self, layout: Layout, replica: int, run: Record, data: bytes, deadline: float) -> None:
        ranges = [wire.RANGE(start=run.addr, end=run.addr + run.count)]
        if run.kind == Kind.TRIMMED:
            self._ask(replica, wire.TRIM, wire.TRIM(ranges=ranges), layout, deadline)
        elif run.kind == Kind.JUNK:
            answer, _ = self._ask(replica, wire.FILL, wire.FILL(ranges=ranges), layout, deadline)
            if answer.outcomes:
                raise Lost("a trim has come between")
        else:
            copy, meta = wire.WRITE(addr=run.addr, meta=run.meta, table=run.table), wire.META.decode(run.meta)
            answer, _ = self._ask(replica, wire.WRITE, copy, layout, deadline, data)
            for held in answer.outcomes:
                if (held.kind, held.client, held.request) != (Kind.DATA, meta.client, wire.request_at(meta, held.addr)):
                    raise Lost("a trim has come between")

    # --- Streams ---------------------------------------------------------------------------------------------------------------

    def stream_end(self, name: str) -> tuple[int, int | None]:
        """The position that the stream's next entry gets, and a log position above which nothing of it stands, if any was granted for it: mostly
        the last."""
        stream = wire.stream_id(name)
        tail = self._repeated(lambda layout, deadline: self._sequencer_tail(layout, [stream], deadline)).streams[0]
        lasts = [] if tail.last == NONE else [tail.last]
        return tail.next, max(lasts + [tail.next - 1]) if tail.next or lasts else None

    def read_stream(self, name: str, first: int = 0) -> list[Entry]:
        """The stream's entries at the log position `first` or above, in order, up to where it ended when it was asked. A hole on the
        way is waited for and filled, since it may be of the stream."""
        wire.check_position(first)
        _, last = self.stream_end(name)
        return [] if last is None else self._stream_entries(wire.stream_id(name), first, last + 1)

    def _stream_entries(self, stream: int, first: int, end: int) -> list[Entry]:
        """The stream's entries at the positions [first, end) of the log."""
        entries: list[Entry] = []
        while first < end:
            found, upto = self._repeated(lambda layout, deadline: self._read_stream_part(layout, stream, first, end, deadline))
            entries += found
            if upto < end and upto == first:
                # With its epoch a tail is over, and the next one may begin below.
                if upto >= self.tail():
                    break
                self.fill(upto)
            first = upto
        return entries

    def follow_stream(self, name: str, first: int = 0, timeout: float | None = None) -> Generator[Entry, None, None]:
        """The stream's entries from the log position `first` on, as they become readable. Ends as `follow` does."""
        stream, seen, news = wire.stream_id(name), 0, time.monotonic()
        while timeout is None or time.monotonic() < news + timeout:
            for entry in self.read_stream(name, first):
                yield entry
                first, news = entry.position + 1, time.monotonic()
                seen = max([seen] + [place.position + 1 for place in entry.places if place.stream == stream])
            watch = wire.WATCH_STREAM(stream=stream, next=seen, wait_ms=500)
            self._repeated(lambda layout, deadline: self._ask(layout.sequencer, wire.WATCH_STREAM, watch, layout, deadline))

    def _name(self, name: str, stream: int) -> None:
        """Has the name of the stream in the log before its first entry."""
        if stream not in self._named:
            if self.stream_end(name)[1] is None:
                names = self._batch([name.encode()], [wire.NAMES])
                self._appended(names, None, False, time.monotonic() + self._timeout)
            self._named.add(stream)

    def _read_stream_part(self, layout: Layout, stream: int, first: int, end: int, deadline: float) -> tuple[list[Entry], int]:
        """The stream's entries in [first, end), and where the part that was looked at ends: at the first hole."""
        entries: list[Entry] = []
        for span in layout.spans(first, end):
            at = span.start
            while at < span.end:
                wait_ms = int(HOLE_WAIT_S * 1000) if span.position(at) == first else 0
                ranges = [wire.RANGE(start=at, end=span.end)]
                read = wire.READ_STREAM(limit_bytes=READ_MAX, flags=0, wait_ms=wait_ms, stream=stream, ranges=ranges)
                answer, data = self._ask(span.replicas[-1], wire.READ_STREAM, read, layout, deadline)
                for run, run_data in with_data(answer.runs, data, at, span.end):
                    if run.kind == Kind.DATA:
                        entries += entries_of(run, run_data, span)
                    if run.kind == Kind.UNWRITTEN:
                        end = min(end, span.position(run.addr))
                at = answer.runs[-1].addr + answer.runs[-1].count
        return sorted((entry for entry in entries if entry.position < end), key=lambda entry: entry.position), end

    # --- Objects ---------------------------------------------------------------------------------------------------------------

    def map(self, name: str) -> Map:
        """The map of this name, which all programs share."""
        return Map(self, name)

    def transact(self, body: Callable[[Transaction], Result], retries: int = 100) -> Result:
        """Runs `body` as one transaction: all that it reads is of one snapshot, and all that it changes stands at one position of the log, or
        nothing does. If somebody has changed what it has read it is run again, after a while, so it does nothing that cannot be done twice;
        after so many times `Aborted` is raised. What `body` raises ends it, and nothing is changed."""
        return transact(self, body, retries)

    def append_record(self, record: Callable[[int, int], bytes], names: Sequence[str], condition: Record) -> int:
        """Appends the record of a transaction over these objects, which is made of who commits it and its number, on its condition, and
        returns its position. Raises `Aborted`."""
        self._next_call += 1
        try:
            return self._append_named([record(self._caller, self._next_call - 1)], names, condition=condition)[0]
        except OutcomeUnknown:
            # It may come yet, and records say that nothing below their number does: those that follow are somebody else's.
            self._caller, self._next_call = secrets.randbelow(NONE - 1) + 1, 0
            raise

    def ask_view(self, stream: int, question: bytes, is_passed_over: Callable[[bytes], bool]) -> bytes:
        """What a node that keeps views answers to a question about an object: the first whose answer is not to be passed over."""
        if len(question) > wire.QUESTION_MAX:
            raise ValueError(f"a question of {len(question)} bytes about an object, of at most {wire.QUESTION_MAX}")

        def attempt(layout: Layout, deadline: float) -> bytes:
            ask = wire.ASK_VIEW(stream=stream, length=len(question), checksum=wire.crc32c(question))
            trouble: Lost | Refused = Lost("no node keeps views")
            passed: bytes | None = None
            for node in layout.in_turn(stream):
                try:
                    answer, data = self._ask_host(node, ask, question, layout, deadline)
                except Refused as error:
                    trouble = error
                    continue
                except Lost as error:
                    # The cluster may go on without it by now: then another one is asked first.
                    trouble = error
                    self._learner.look(layout, min(deadline, time.monotonic() + PAUSE_S))
                    if self._layout.epoch != layout.epoch:
                        raise
                    continue
                if answer.length != len(data) or answer.checksum != wire.crc32c(data):
                    trouble = Lost("an answer that does not match its checksum")
                elif not is_passed_over(data):
                    return data
                else:
                    passed = data
            if passed is None:
                raise trouble
            return passed

        return self._repeated(attempt)

    def _ask_host(self, node: int, ask: Record, question: bytes, layout: Layout, deadline: float) -> tuple[Record, bytes]:
        """What a node answers within half of the call's time, in which it may have to read all of the object's stream."""
        until = min(deadline, time.monotonic() + self._timeout / 2)
        return self._ask(node, wire.ASK_VIEW, ask, layout, until, question)

    # --- Questions -------------------------------------------------------------------------------------------------------------

    def _sequencer_tail(self, layout: Layout, streams: list[int], deadline: float) -> Record:
        tail, _ = self._ask(layout.sequencer, wire.CHECK, wire.CHECK(extents=[], streams=streams), layout, deadline)
        if tail.tail == NONE or len(tail.streams) != len(streams):
            raise Lost("the sequencer does not say where the log ends")
        return tail

    def _reached(self, layout: Layout, deadline: float) -> tuple[Layout, int]:
        """Where the log ends, and by which layout."""
        return layout, self._sequencer_tail(layout, [], deadline).tail

    def _extent(self, layout: Layout, span: Span, deadline: float) -> Record:
        """How far the last replica has resolved, and trimmed, the addresses of the span."""
        check = wire.CHECK(extents=[wire.RANGE(start=span.start, end=span.end)], streams=[])
        tail, _ = self._ask(span.replicas[-1], wire.CHECK, check, layout, deadline)
        if len(tail.extents) != 1:
            raise Lost("the unit does not say what was asked")
        extent: Record = tail.extents[0]
        return extent

    def _read_positions(self, layout: Layout, first: int, end: int, deadline: float) -> list[Entry]:
        found: dict[int, Entry] = {}
        for span in layout.spans(first, end):
            at = span.start
            while at < span.end:
                entries = self._read_some(layout, span, at, deadline)
                found.update((entry.position, entry) for entry in entries)
                at += len(entries)
        return [found.get(position) or Entry(position, Kind.TRIMMED) for position in range(first, end)]

    def _read_some(self, layout: Layout, span: Span, at: int, deadline: float) -> list[Entry]:
        """Entries from the address on, of the last replica; where that fails what is committed, of the others."""
        trouble: Error | None = None
        for replica in reversed(span.replicas):
            is_last = replica == span.replicas[0]
            until = deadline if is_last else min(deadline, time.monotonic() + READ_PATIENCE_S)
            damaged = isinstance(trouble, Damaged) or isinstance(trouble, Refused) and trouble.code == Code.DAMAGED
            try:
                runs = self._read_runs(layout, replica, at, span.end, trouble is not None and not damaged, until)
                entries = [entry for run, data in runs for entry in entries_of(run, data, span)]
            except (Lost, Refused, Damaged) as error:
                trouble = trouble or error
                continue
            # That another replica has nothing does not say that there is nothing, where the last one had lost something.
            known = list(itertools.takewhile(lambda entry: entry.kind != Kind.UNWRITTEN, entries)) if damaged else entries
            if known:
                return known
        raise trouble or Lost("a stripe without replicas")

    def _read_runs(
        self, layout: Layout, replica: int, start: int, end: int, committed: bool, deadline: float
    ) -> list[tuple[Record, bytes]]:
        read = wire.READ(limit_bytes=READ_MAX, committed=int(committed), ranges=[wire.RANGE(start=start, end=end)])
        answer, data = self._ask(replica, wire.READ, read, layout, deadline)
        return with_data(answer.runs, data, start, end)

    def _settled(self, first: int, end: int) -> Iterator[Entry]:
        """The positions [first, end), which were all granted, in order; holes are filled."""
        for entry in self.read_range(first, end):
            if entry.kind == Kind.UNWRITTEN:
                time.sleep(HOLE_WAIT_S)
                entry = self.fill(entry.position)
            yield entry

    def _pushed(self, first: int, news: float, timeout: float | None) -> Generator[Entry, None, tuple[int, float, bool]]:
        """Positions of the active range from `first` on, as its units push them, until something ends that or nothing comes for so long.
        Returns the next one, when the last one came, and whether it was quiet."""
        layout, position, wait = self._layout, first, math.inf if timeout is None else timeout
        feeds: list[Feed] = []
        try:
            for span in sorted(layout.spans(first, first + layout.stripes), key=lambda span: span.first):
                feeds.append(self._feed(layout, span))
            while True:
                try:
                    entry = feeds[(position - first) % len(feeds)].take(position, time.monotonic() + min(HOLE_WAIT_S, wait))
                except Late:
                    if self._layout.epoch != layout.epoch:
                        break
                    if position >= self.tail():
                        if time.monotonic() >= news + wait:
                            return position, news, True
                        continue
                    entry = next(self._settled(position, position + 1))
                yield entry
                position, news = position + 1, time.monotonic()
        except (Lost, Refused) as trouble:
            if not _passing(trouble):
                raise
            self._look_again(layout, news + wait, trouble)
        finally:
            for feed in feeds:
                feed.close()
        return position, news, False

    def _feed(self, layout: Layout, span: Span) -> Feed:
        node = span.replicas[-1]
        connection = self._learner.new_connection(layout.nodes[node].address, node)

        def wait(connection: Connection, request: int, until: float) -> None:
            self._learner.wait(connection, request, layout, until)

        return Feed(connection, span, layout.epoch, wait)

    def _repeated(self, attempt: Callable[[Layout, float], Result], deadline: float | None = None) -> Result:
        """What the attempt returns, which may be made again in this layout or a newer one until the time is over."""
        deadline = deadline or time.monotonic() + self._timeout
        while True:
            layout = self._layout
            try:
                return attempt(layout, deadline)
            except (Lost, Refused) as error:
                if not _passing(error):
                    raise
                self._look_again(layout, deadline, error)

    def _look_again(self, layout: Layout, deadline: float, trouble: Error) -> None:
        """Looks for a layout newer than this one, and waits for it a little."""
        self._learner.look(layout, min(deadline, time.monotonic() + PAUSE_S))
        if time.monotonic() + PAUSE_S > deadline:
            raise DeadlinePassed(str(trouble)) from trouble

    def _ask(
        self, node: int, message: Message, record: Record, layout: Layout, deadline: float, data: bytes = b""
    ) -> tuple[Record, bytes]:
        return self._learner.ask(node, message, record, layout, deadline, data)

    def _connect(self, layout: Layout, node: int) -> Connection:
        return self._learner.connection(layout.nodes[node].address, node)
