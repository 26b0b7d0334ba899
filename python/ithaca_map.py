"""Maps that programs share, in whatever language: changes are records in the log, and a node of the cluster has the state and answers.

Written from docs/protocol/remote-views.md and docs/format/object.md. A change that has returned is on stable storage; a read reflects all
changes that were acknowledged before it began. Keys and values are what MessagePack has: None, bool, int, float, str, bytes, and lists and
dicts of these, at most `ithaca_pack.DEPTH_MAX` deep inside each other. Of a map that Rust programs have too, they must be of the types
that those expect.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import ithaca_wire as wire
from ithaca_hash import ALL, part
from ithaca_node import Aborted
from ithaca_pack import hashable, pack, unpack
from ithaca_wire import BadFrame, Error

if TYPE_CHECKING:
    from ithaca import Client

# Levels around a value of a map in arguments and results: their names, and a list where there may be several or none.
NAMED, LISTED = 1, 2
# Parts of one map that a transaction names. Of one with more it names all, which makes more conflicts and never fewer.
PARTS_MAX = 64
# How often the newest state is asked for that falls short of where its stream was said to end, and the wait between.
ATTEMPTS_MAX, ATTEMPT_WAIT_S = 16, 0.002
# What a field of a refusal is about, where its name does not say it.
SAID = {"below": "it lacks what was trimmed below position"}
# So that calls fit into a record, and into a question, with what stands around them.
CALLS_BYTES_MAX = wire.ENTRY_MAX - 4096
Result = TypeVar("Result")


class ViewRefused(Error):
    """A node cannot answer what was asked about a map, and says why: `reason` is its word for that, such as `Forgotten`."""

    def __init__(self, name: str, reason: str, details: Any) -> None:
        told = [f"{SAID.get(field, field)} {value}" for field, value in details.items()] if isinstance(details, dict) else []
        # A node knows the stream, and not its name.
        stream = f"`s{wire.stream_id(name):x}`"
        why = ", ".join(told).removeprefix("why ").removeprefix(f"object {stream}: ").replace(stream, f"`{name}`")
        super().__init__(f"map `{name}`: {reason}: {why}" if why else f"map `{name}`: {reason}")
        self.reason, self.details, self.name = reason, details, name


@dataclass(frozen=True)
class Placed:
    """A value, and the position of the log at which its key was given it: its version."""

    value: Any
    position: int


@dataclass(frozen=True)
class Replaced:
    """What became of a change that was to be made only on a condition: whether it was, where it stands, and what was there instead if not."""

    done: bool
    position: int | None
    found: Placed | None = None


@dataclass(frozen=True)
class Call:
    """A change of an object, with the hash of the part that it is about."""

    name: str
    method: str
    arguments: bytes
    part: int

    def asked(self) -> dict[str, Any]:
        """As a question has it."""
        return {"method": self.method, "arguments": self.arguments}


def record(client: int, request: int, calls: list[Call]) -> bytes:
    """Calls as they stand in the log. Nothing of the client below this request is tried again."""
    names = list(dict.fromkeys(call.name for call in calls))
    streams = [wire.stream_id(name) for name in names]
    packed = [wire.CALL(stream=names.index(call.name), name=call.method.encode(), arguments=call.arguments) for call in calls]
    body = wire.OBJECT_RECORD.write(
        wire.OBJECT_RECORD(client=client, request=request, settled=request, streams=streams, checks=[], calls=packed)
    )
    return wire.enveloped(b"ITob", body)


def question(object_type: str, least: int, at: int | None, calls: list[dict[str, Any]], read: dict[str, Any] | None) -> bytes:
    return pack({"object": object_type, "least": least, "at": at, "calls": calls, "read": read})


class Transaction:
    """Reads of one snapshot, and changes that take effect together when it commits: see `Client.transact`."""

    def __init__(self, client: Client) -> None:
        self._client, self.snapshot = client, client.tail()
        self._reads: dict[tuple[str, int], None] = {}
        self._calls: list[Call] = []
        self._maps: dict[str, Map] = {}

    def map(self, name: str) -> Map:
        """The map of this name as of the snapshot, with what this transaction has changed itself."""
        return self._maps.setdefault(name, Map(self._client, name, self))

    def note_reads(self, name: str, parts: Iterable[int]) -> None:
        self._reads.update(((name, part), None) for part in parts)

    def add(self, call: Call) -> None:
        self._calls.append(call)

    def calls_of(self, name: str) -> list[dict[str, Any]]:
        """What it has changed of this object, as a question has it."""
        return [call.asked() for call in self._calls if call.name == name]

    def commit(self) -> int | None:
        """Where its changes stand, which is decided by what it has read; None if there are none. Raises `Aborted`."""
        return _append(self._client, self._calls, self.snapshot, self._reads) if self._calls else None


def transact(client: Client, body: Callable[[Transaction], Result], retries: int) -> Result:
    """See `Client.transact`."""
    for attempt in itertools.count():
        try:
            transaction = Transaction(client)
            result = body(transaction)
            transaction.commit()
            return result
        except (Aborted, ViewRefused) as trouble:
            # The log may end below a snapshot of an epoch that is over.
            passes = isinstance(trouble, Aborted) or trouble.reason == "NotYet"
            if attempt >= retries or not passes:
                raise
            time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.1)))
    raise AssertionError("it is run until it commits or raises")


def _append(client: Client, calls: list[Call], snapshot: int, reads: Collection[tuple[str, int]]) -> int:
    _check(calls)
    names = list(dict.fromkeys(call.name for call in calls))
    read, writes = _parts(reads), _parts((call.name, call.part) for call in calls)
    if len(read) > wire.CONDITION_PARTS_MAX:
        raise ValueError(f"a transaction that has read {len(read)} parts of maps, of at most {wire.CONDITION_PARTS_MAX}")
    condition = wire.CONDITION(snapshot=snapshot, reads=read, writes=writes)
    try:
        return client.append_record(lambda caller, request: record(caller, request, calls), names, condition)
    except Aborted as aborted:
        known = {wire.stream_id(name): name for name in {*names, *(name for name, _ in reads)}}
        raise Aborted(aborted.stream, aborted.part, aborted.position, known.get(aborted.stream)) from aborted


def _check(calls: Sequence[Call]) -> None:
    """Raises `ValueError` if the calls do not fit into one record."""
    names, size = {call.name for call in calls}, sum(len(call.arguments) + len(call.method) + 8 for call in calls)
    for count, most, what in (
        (len(names), wire.STREAMS_MAX, "maps"), (len(calls), wire.CALLS_MAX, "calls"), (size, CALLS_BYTES_MAX, "bytes of calls"),
    ):  # fmt: skip
        if count > most:
            raise ValueError(f"a change of {count} {what}, of at most {most}")


def _parts(named: Iterable[tuple[str, int]]) -> list[wire.Record]:
    """Each part once, as a condition has them."""
    of: dict[str, dict[int, None]] = {}
    for name, part_of in named:
        of.setdefault(name, {})[part_of] = None
    found = []
    for name, parts in of.items():
        stream, is_whole = wire.stream_id(name), len(parts) > PARTS_MAX or ALL in parts
        found += [wire.PART(stream=stream, key=key) for key in ([ALL] if is_whole else parts)]
    return found


class Map:
    """A map of this name, empty if nobody has changed it. `Client.map` gives one; `Transaction.map` one of a transaction, whose changes have
    no position before it commits."""

    def __init__(self, client: Client, name: str, transaction: Transaction | None = None) -> None:
        self._client, self._name, self._stream, self._transaction = client, name, wire.stream_id(name), transaction

    # --- Reading ---------------------------------------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None, at: int | None = None) -> Any:
        """The value of the key. With `at` the map as it was when it reflected every position below."""
        placed = self.placed(key, at)
        return default if placed is None else placed.value

    def placed(self, key: Any, at: int | None = None) -> Placed | None:
        """The value of the key and its version; None if it has none."""
        return _placed(self._look("get", {"key": key}, at))

    def multi_get(self, keys: Iterable[Any], at: int | None = None) -> dict[Any, Any]:
        """The values of those of the keys that have one, as of one moment."""
        wanted = list(keys)
        found = map(_placed, self._look("multi_get", {"keys": wanted}, at))
        return {hashable(key): placed.value for key, placed in zip(wanted, found, strict=True) if placed is not None}

    def contains(self, key: Any, at: int | None = None) -> bool:
        return bool(self._look("contains", {"key": key}, at))

    def size(self, at: int | None = None) -> int:
        return int(self._look("len", {}, at))

    def items(self, at: int | None = None) -> dict[Any, Any]:
        """Every key and its value, as of one moment, in any order."""
        return {hashable(key): value for key, value in self._look("all", {}, at)}

    # --- Changing --------------------------------------------------------------------------------------------------------------

    def put(self, key: Any, value: Any) -> int | None:
        """Gives the key a value, and returns the position at which it was. `OutcomeUnknown` as of any append."""
        return self._append("put", {"key": key, "value": value})[0]

    def remove(self, key: Any) -> int | None:
        """Removes the key, if it is there, and returns the position at which it was."""
        return self._append("remove", {"key": key})[0]

    def clear(self) -> int | None:
        """Removes every key, and returns the position at which they were."""
        return self._append("clear", {})[0]

    def put_if_absent(self, key: Any, value: Any) -> Replaced:
        """Gives the key a value if it has none. It is decided where the call stands in the log, so that of several that try one
        succeeds. If no node says what came of it, its error says that; the map does."""
        return self._set_if(key, None, [value])

    def replace(self, key: Any, version: int, value: Any) -> Replaced:
        """Gives the key another value if the one that it has is of the version."""
        return self._set_if(key, version, [value])

    def remove_if(self, key: Any, version: int) -> Replaced:
        """Removes the key if its value is of the version."""
        return self._set_if(key, version, [])

    def _set_if(self, key: Any, version: int | None, value: list[Any]) -> Replaced:
        if version is not None:
            # Of a call with no number of a position nobody could read what it means.
            wire.check_position(version)
        if self._transaction is not None:
            # Decided here: what the transaction has put itself is of another version where it will stand.
            found = self.placed(key)
            if (found.position if found else None) != version:
                return Replaced(False, None, found)
            for item in value:
                self.put(key, item)
            if not value:
                self.remove(key)
            return Replaced(True, None)
        position, call = self._append("set_if", {"key": key, "version": version, "value": value}, LISTED)
        assert position is not None
        result = self._ask(position + 1, position, [call.asked()], None)
        if not isinstance(result, dict) or len(result) != 1 or not result.keys() <= {"Ok", "Err"}:
            raise BadFrame(f"{result} is no result of a change on a condition")
        return Replaced("Ok" in result, position, _placed(result.get("Err")))

    def _append(self, method: str, arguments: dict[str, Any], around: int = NAMED) -> tuple[int | None, Call]:
        """Appends a call, now or with its transaction, and gives its position."""
        packed = pack(arguments, around)
        call = Call(self._name, method, packed, part(pack(arguments["key"])) if "key" in arguments else ALL)
        _check([call])
        if self._name not in self._client.known_maps:
            # A call of a map would stop an object of another type for good: the node says whether it is one.
            self._client.map(self._name).size()
            self._client.known_maps.add(self._name)
        if self._transaction is not None:
            self._transaction.add(call)
            return None, call
        return _append(self._client, [call], 0, []), call

    # --- Asking ----------------------------------------------------------------------------------------------------------------

    def _look(self, method: str, arguments: dict[str, Any], at: int | None) -> Any:
        read = {"method": method, "arguments": pack(arguments, NAMED if "key" in arguments else LISTED)}
        if self._transaction is not None:
            if at is not None:
                raise ValueError("a transaction reads its snapshot")
            keys = [arguments["key"]] if "key" in arguments else arguments.get("keys")
            self._transaction.note_reads(self._name, [ALL] if keys is None else [part(pack(key)) for key in keys])
            snapshot = self._transaction.snapshot
            return self._ask(snapshot, snapshot, self._transaction.calls_of(self._name), read)
        if at is not None:
            wire.check_position(at)
            return self._ask(at, at, [], read)
        return self._look_newest(read)

    def _look_newest(self, read: dict[str, Any]) -> Any:
        # What was acknowledged stands at or below the position that the sequencer names now.
        least = self._end()
        for attempt in range(ATTEMPTS_MAX):
            upto, value = self._ask_once(least, None, [], read)
            if upto < least:
                # That position was granted and never written: if its epoch is over, the stream ends lower by now.
                time.sleep(ATTEMPT_WAIT_S if attempt else 0)
                least = self._end()
            if upto >= least:
                return value
        why = f"its node reflects every position below {upto}, and below {least} is wanted; it may be there later"
        raise ViewRefused(self._name, "Unavailable", {"why": why})

    def _end(self) -> int:
        """One past the position that was granted last for the map."""
        _, last = self._client.stream_end(self._name)
        return 0 if last is None else last + 1

    def _ask(self, least: int, at: int, calls: list[dict[str, Any]], read: dict[str, Any] | None) -> Any:
        """What is asked about the state as of a position."""
        upto, value = self._ask_once(least, at, calls, read)
        if upto < at:
            raise BadFrame(f"a view as of {at} that reflects {upto}")
        return value

    def _ask_once(self, least: int, at: int | None, calls: list[dict[str, Any]], read: dict[str, Any] | None) -> tuple[int, Any]:
        """The position below which a node's state reflects everything, which may be less than `least`, and what that state gives."""
        asked = question("map", least, at, calls, read)
        answer = unpack(self._client.ask_view(self._stream, asked, _is_passed_over))
        match answer:
            case {"Value": {"upto": int(upto), "value": bytes(value)}}:
                return upto, unpack(value, LISTED)
            case {"Refused": reason}:
                raise ViewRefused(self._name, *_reason(reason))
        raise BadFrame(f"{answer} is no answer of a view")


def _reason(reason: Any) -> tuple[str, Any]:
    """The node's word, and what it says of it."""
    return next(iter(reason.items()), ("", None)) if isinstance(reason, dict) else (str(reason), None)


def _is_passed_over(answer: bytes) -> bool:
    """Whether another node may know more: one that cannot reach the log now says so."""
    match unpack(answer):
        case {"Refused": reason}:
            return _reason(reason)[0] == "Unavailable"
    return False


def _placed(found: Any) -> Placed | None:
    match found:
        case None:
            return None
        case {"value": value, "pos": int(position)}:
            return Placed(value, position)
    raise BadFrame(f"{found} is no value of a map")
