"""Appends that take their positions together, and what of them stands where.

Pure: what is sent, and what is done with the answers, is the client's part ([ithaca.py](ithaca.py)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import ithaca_wire as wire
from ithaca_node import Aborted
from ithaca_wire import Layout, Record, Span


@dataclass
class Batch:
    """Appends that take their positions together, in one epoch."""

    layout: Layout
    number: int
    request: int
    after: int
    entries: Sequence[bytes]
    streams: Sequence[int]
    condition: Record | None

    def groups(self) -> list[Record]:
        has = int(self.condition is not None)
        return [wire.GROUP(count=len(self.entries), has_condition=has, streams=list(self.streams), condition=self.condition)]

    def table(self) -> list[Record]:
        return [wire.ROW(len=len(entry), crc32c=wire.crc32c(entry)) for entry in self.entries]


class Releases:
    """What streams have released: up to which position of each, and below which position of the log all of that stands."""

    def __init__(self, records: Iterable[bytes]) -> None:
        self._highest: dict[int, tuple[int, int]] = {}
        for record in records:
            try:
                found = wire.RELEASES.decode(wire.opened(b"ITrl", record)).releases
            except wire.BadFrame:
                continue  # what cannot be read releases nothing
            for one in found:
                self.add(one.stream, one.below, one.log_below)

    def add(self, stream: int, below: int, log_below: int) -> None:
        self._highest[stream] = max(self._highest.get(stream, (0, 0)), (below, log_below))

    def records(self) -> list[bytes]:
        """As entries of the stream of releases."""
        every = [
            wire.RELEASE(stream=stream, below=below, log_below=log_below)
            for stream, (below, log_below) in sorted(self._highest.items())
        ]
        rows = [every[start : start + wire.RELEASES_MAX] for start in range(0, len(every), wire.RELEASES_MAX)]
        return [wire.enveloped(b"ITrl", wire.RELEASES.write(wire.RELEASES(releases=row))) for row in rows]


def check_entries(entries: Sequence[bytes], most_bytes: int) -> None:
    """Raises what says that one of the entries is none, or longer than so many bytes."""
    for entry in entries:
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, and no {type(entry).__name__}")
        if len(entry) > most_bytes:
            raise ValueError(f"an entry of {len(entry)} bytes, of at most {most_bytes}")


def stream_ids(names: Sequence[str]) -> list[int]:
    """The ids of the streams of one entry. Raises `ValueError` if they are none."""
    if isinstance(names, str):
        raise ValueError(f"a list of names of streams is wanted, not {names!r}")
    if len(names) > wire.STREAMS_MAX:
        raise ValueError(f"an entry of {len(names)} streams, of at most {wire.STREAMS_MAX}")
    if len(set(names)) < len(names):
        raise ValueError(f"an entry is in a stream once: {', '.join(map(repr, names))}")
    return [wire.stream_id(name) for name in names]


def check_granted(batch: Batch, groups: Sequence[Record]) -> None:
    """Raises `Aborted` if the batch was refused for its condition."""
    for group in groups:
        if group.conflict is not None:
            raise Aborted(group.conflict.stream, group.conflict.key, group.conflict.pos)
        if group.low_water is not None:
            raise Aborted(batch.streams[0], None, group.low_water)


def batches(entries: Sequence[bytes], most_bytes: int, most_entries: int) -> Iterator[Sequence[bytes]]:
    """The entries in rows that fit into one batch each."""
    start, size = 0, 0
    for index, entry in enumerate(entries):
        if index > start and (index - start == most_entries or size + len(entry) > most_bytes):
            yield entries[start:index]
            start, size = index, 0
        size += len(entry)
    if start < len(entries):
        yield entries[start:]


def within(held: Record, span: Span) -> range:
    """The addresses of the span that an outcome speaks of."""
    return range(max(held.addr, span.start), min(held.addr + held.count, span.end))


def between(start: int, end: int, holes: set[int]) -> Iterator[tuple[int, int]]:
    """What is left of [start, end) without the holes."""
    for hole in sorted(holes):
        if start < hole:
            yield start, hole
        start = hole + 1
    if start < end:
        yield start, end
