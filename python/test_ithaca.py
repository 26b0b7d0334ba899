"""Tests of the client, and through it of the pages that it was written from: golden frames, a cluster in one process, and three
servers of which one is killed. `ITHACA_PROGRAM` names the program; without it that of a debug build is taken."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable, Generator, Iterable

import ithaca_wire as wire
import ithaca_map
from ithaca import Client, OutcomeUnknown
from ithaca_batch import Releases
from ithaca_hash import ALL, part, xxh3
from ithaca_map import Placed, Replaced, Transaction, ViewRefused
from ithaca_node import Aborted, Code, Connection, Entry, Refused
from ithaca_pack import DEPTH_MAX, pack, unpack
from ithaca_wire import U8, U32, U64, U128, BadFrame, Blob, Field, Fields, Frame, Kind, Listed, Message, Record, Text, Zeros
from test_learn import Learning  # noqa: F401 (run with those below)

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("ITHACA_PROGRAM", str(ROOT / "target/debug/ithaca"))

# The messages of docs/protocol.md that this client has no use for: what nodes, and who has orders for a cluster, send.
RECORD = Blob(512_000)
PATH = Text(1024)
BALLOT: dict[str, Field] = {"outcome": U32, "reserved": Zeros(4), "round": U64, "proposer": U64, "record": RECORD}
BEAT: dict[str, Field] = {
    "node": U64, "state": U8, "reserved": Zeros(3), "write_us": U32, "unheard": Listed(U64, 1024),
    "marks": Listed(Fields(start=U64, trimmed=U64, complete=U64), 64),
}  # fmt: skip
DRIVE = Fields(id=U64, link=U32, flags=U32, segments=U64, free=U64, live=U64, data=U64, size=U64, path=PATH)
OTHERS = [
    Message(0x0008, epoch=U64, ranges=Listed(wire.RANGE, 256)),
    Message(0x8008, epoch=U64, highest=Listed(U64, 256)),
    Message(0x0010, epoch=U64, round=U64, proposer=U64),
    Message(0x8010, None, **BALLOT, others=U32, leases=Listed(Fields(node=U64, left=U32), 1024)),
    Message(0x0011, round=U64, proposer=U64, record=RECORD),
    Message(0x8011, None, **BALLOT),
    Message(0x0012, invitation=U32, record=RECORD),
    Message(0x8012, epoch=U64),
    Message(0x0013, epoch=U64, node=U64),
    Message(0x8013, granted=U32, reserved=Zeros(4)),
    Message(0x0014, None, **BEAT),
    Message(0x8014, None, **BEAT),
    Message(0x0015, start=U64, end=U64),
    Message(0x8015, ranges=wire.RANGES),
    Message(0x0016, what=U32, count=U32, node=U64, address=Text(256), offers=U32),
    Message(0x8016, epoch=U64),
    Message(0x001A),
    Message(0x801A, node=U64, drives=Listed(DRIVE, 64)),
    Message(0x001B, what=U32, wait_ms=U32, node=U64, create=U64, of=PATH, paths=Listed(PATH, 4)),
    Message(0x801B, outcome=U32, why=U32, left=U64, told=Text(8192)),
]
MESSAGES = wire.MESSAGES | {message.kind: message for message in OTHERS}


def golden(file: str) -> dict[str, bytes]:
    """Bytes by their names, of a file of golden bytes of a crate."""
    found: dict[str, str] = {}
    for line in (ROOT / "crates" / file).read_text().split("\n\n", 1)[1].splitlines():
        if line.startswith(" "):
            found[name] += line
        elif line:
            name = line
            found[name] = ""
    return {name: bytes.fromhex(line) for name, line in found.items()}


def settings() -> dict[str, str]:
    """The environment, without settings of Ithaca but for how long a command may take."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ITHACA")}
    return kept | {"ITHACA_TIMEOUT": "30s"}


class Served:
    """Processes of the program that are killed at the end, with their data below a directory of their own."""

    def __init__(self) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="ithaca-python-")
        self.processes: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []

    def start(self, *arguments: str) -> None:
        """Starts one more, and waits until it serves."""
        data = f"{self._dir.name}/{len(self.processes)}"
        asked = ["--json", "--data", data, "--drive-size", "64M", "--log-level", "off"]
        ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command = [PROGRAM, *arguments, *asked, *ports]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings(), cwd=self._dir.name)
        assert process.stdout is not None
        self.processes.append(process)
        self.endpoints.append(json.loads(process.stdout.readline())["log"])

    def cli(self, *arguments: str, given: str = "") -> str:
        """What a command prints on its standard output."""
        command = [PROGRAM, "--endpoint", ",".join(self.endpoints), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, env=settings(), cwd=self._dir.name, check=False)
        assert done.returncode == 0, done
        return done.stdout

    def lines(self, *arguments: str) -> list[tuple[int, str, bytes]]:
        """Position, kind and data of the entries that a command prints as JSON."""
        found = [json.loads(line) for line in self.cli(*arguments, "--json").splitlines()]
        return [(entry.get("log_pos", entry["pos"]), entry["kind"], base64.b64decode(entry["data_base64"])) for entry in found]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._dir.cleanup()


def shown(entries: Iterable[Entry]) -> list[tuple[int, str, bytes]]:
    """The same of entries that the client has read."""
    return [(entry.position, entry.kind.name.lower(), entry.data) for entry in entries]


def nested(depth: int) -> object:
    """A value that is so deep."""
    value: object = 1
    for _ in range(depth - 1):
        value = (value,)
    return value


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


class Golden(unittest.TestCase):
    """The pages describe the golden bytes, of every message."""

    def test_each_golden_frame_is_decoded_and_encoded_again(self) -> None:
        frames = golden("log/testdata/golden/frames.txt")
        self.assertGreater(len(frames), 80)
        for name, frame_bytes in frames.items():
            with self.subTest(name):
                frame = Frame.decode(frame_bytes)
                self.assertEqual(frame.encode(), frame_bytes)
                message = MESSAGES[frame.kind]
                body = message.decode(frame.body)
                self.assertEqual(message.write(body), frame.body)
                for run in [*getattr(body, "runs", []), body]:
                    if getattr(run, "meta", b""):
                        self.assertEqual(wire.META.write(wire.META.decode(run.meta)), run.meta)

    def test_no_frame_that_is_cut_off_or_harmed_is_taken(self) -> None:
        # A lie about a length, or harm on the way, would be taken for what somebody has said.
        for name, frame_bytes in golden("log/testdata/golden/frames.txt").items():
            frame = Frame.decode(frame_bytes)
            body_end = wire.HEADER_LEN + len(frame.body)
            for cut in range(len(frame_bytes)):
                self.assertRaises(BadFrame, Frame.decode, frame_bytes[:cut])
            for at in range(body_end):
                harmed = frame_bytes[:at] + bytes([frame_bytes[at] ^ 0x81]) + frame_bytes[at + 1 :]
                self.assertRaises(BadFrame, Frame.decode, harmed)
            for cut in range(len(frame.body)):
                with self.subTest(name, cut=cut):
                    self.assertRaises(BadFrame, MESSAGES[frame.kind].decode, frame.body[:cut])

    def test_lengths_beyond_the_limits_are_refused_before_anything_is_waited_for(self) -> None:
        for frame_len, body_len in [
            (wire.FRAME_MAX + 1, 0),
            (wire.BODY_MAX + 1, wire.BODY_MAX + 1),
            (8, 9),
            (wire.DATA_MAX + 1, 0),
        ]:
            self.assertRaises(BadFrame, Frame.length, struct.pack("<I8xI16x", frame_len, body_len))

    def test_a_layout_is_read_and_maps_positions(self) -> None:
        layout = wire.Layout(golden("log/testdata/golden/records.txt")["layout"])
        self.assertEqual((layout.epoch, layout.sequencer, layout.tail, layout.nodes[2].address), (2, 2, 45, "127.0.0.1:7420"))
        self.assertEqual(layout.spans(3, 10), [wire.Span([2], 3, 10, 3, 1)])

    def test_streams_are_named_by_blake3(self) -> None:
        # The published hashes of "abc" and of nothing but a's would do; a name of four blocks is compared with the program below.
        self.assertEqual(wire.stream_id("abc").to_bytes(16, "little").hex(), "6437b3ac38465133ffb63b75273a8db5")


    def test_each_program_asks_the_same_nodes_about_an_object(self) -> None:
        # Else each object is in the memory of several nodes. The weights are those that `weight` of crates/log/src/client/remote.rs gives.
        users = wire.stream_id("users")
        weights = {1: 0xD81E24CF39E0813C, 2: 0x7B09DD7519B3BEB7, 3: 0x2EB35F8099D4911F, 4: 0xF1E0082192ABE82E}
        self.assertEqual({node: wire.weight(node, users) for node in weights}, weights)
        layout = wire.Layout(golden("log/testdata/golden/records.txt")["layout"])
        for states, expected in [((0, 0, 0, 0), [4, 1, 2, 3]), ((1, 0, 2, 3), [2, 4, 1, 3])]:
            layout.nodes = {node: Record(state=state) for node, state in enumerate(states, 1)}
            self.assertEqual(layout.in_turn(users), expected)


class Packed(unittest.TestCase):
    """Values and calls of objects have the bytes that programs in Rust give them."""

    def test_arguments_of_calls_are_decoded_and_encoded_again(self) -> None:
        calls = golden("object/testdata/golden/calls.txt")
        self.assertGreater(len(calls), 15)
        for name, arguments in calls.items():
            self.assertEqual(pack(unpack(arguments)), arguments, name)
        self.assertEqual(pack({"key": "k", "version": None, "value": []}), calls["map set_if"])

    def test_releases_have_golden_bytes(self) -> None:
        known = golden("log/testdata/golden/records.txt")["release"]
        self.assertEqual(Releases([known, b"none"]).records(), [known])

    def test_questions_and_records_have_golden_bytes(self) -> None:
        questions = golden("object/testdata/golden/questions.txt")
        read = {"method": "get", "arguments": pack({"key": "ann"})}
        self.assertEqual(ithaca_map.question("map", 43, None, [], read), questions["what_a_key_has"])
        call = {"method": "clear", "arguments": pack({})}
        self.assertEqual(ithaca_map.question("map", 43, 42, [call], None), questions["what_a_call_gave"])
        known = golden("object/testdata/golden/records.txt")["record"]
        found = wire.OBJECT_RECORD.decode(known[12:-4])
        self.assertEqual(wire.OBJECT_RECORD.write(found), known[12:-4])
        self.assertEqual([(call.name, unpack(call.arguments)) for call in found.calls][0], (b"put", {"key": "k", "value": 7}))
        record = ithaca_map.record(7, 3, [ithaca_map.Call("m", "put", pack({"key": "k", "value": 7}), 0)])
        self.assertEqual((record[:8], record[-4:]), (known[:8], wire.crc32c(record[:-4]).to_bytes(4, "little")))
        found = wire.OBJECT_RECORD.decode(record[12:-4])
        self.assertEqual((found.client, found.request, found.settled, found.streams), (7, 3, 3, [wire.stream_id("m")]))

    def test_parts_have_the_hashes_that_programs_in_rust_give_them(self) -> None:
        hashes = golden("log/testdata/golden/parts.txt")
        self.assertGreater(len(hashes), 20)
        data = bytes((number * 2654435761 >> 13) & 0xFF for number in range(5000))
        for length, known in hashes.items():
            self.assertEqual(xxh3(data[: int(length)]), int.from_bytes(known, "big"), length)
        self.assertEqual(part(b"a"), 0xE6C632B61E964E1F)

    def test_each_value_comes_back_and_no_cut_or_lie_is_taken(self) -> None:
        edges = [edge + by for edge in (0, 1 << 7, 1 << 8, 1 << 16, 1 << 32) for by in (-1, 0, 1)] + [(1 << 64) - 1]
        values = [*edges, *(-edge for edge in edges[:-1]), None, True, False, 1.5, b"", b"x" * 300, [1] * 15, [[]] * 70_000]
        values += ["a" * length for length in (0, 31, 32, 255, 256, 70_000)] + [{number: [number] for number in range(20)}]
        for value in values:
            packed = pack(value)
            self.assertEqual(unpack(packed), value)
            for cut in {0, 1, len(packed) // 2, len(packed) - 1} - {len(packed)}:
                self.assertRaises(BadFrame, unpack, packed[:cut])
        self.assertRaises(BadFrame, unpack, b"\xc0\xc0")
        self.assertRaises(BadFrame, unpack, b"\xdf\xff\xff\xff\xff\x01")
        self.assertRaises(BadFrame, unpack, b"\x91" * 1000 + b"\xc0")
        self.assertRaises(OverflowError, pack, 1 << 64)
        self.assertRaises(TypeError, pack, object())

    def test_what_is_too_deep_to_be_read_is_not_packed(self) -> None:
        within: list[object] = []
        within.append(within)
        for value in (nested(DEPTH_MAX + 1), nested(100_000), {"a": nested(DEPTH_MAX)}, {nested(DEPTH_MAX): 1}, within):
            self.assertRaisesRegex(ValueError, f"more than {DEPTH_MAX} deep", pack, value)
        for depth in (DEPTH_MAX, DEPTH_MAX + 2):
            deepest = pack(nested(depth), depth - DEPTH_MAX)
            self.assertEqual(pack(unpack(deepest, depth - DEPTH_MAX), depth - DEPTH_MAX), deepest)
            self.assertRaises(BadFrame, unpack, b"\x91" + deepest, depth - DEPTH_MAX)


class Asked:
    """A client of which a map asks where its stream ends, and a node for its state: what each of them says, one after the other."""

    def __init__(self, lasts: Iterable[int | None], answers: Iterable[object]) -> None:
        self._lasts, self._answers, self.least = iter(lasts), iter(answers), list[int]()

    def stream_end(self, _: str) -> tuple[int, int | None]:
        last = next(self._lasts)
        return 0 if last is None else last + 1, last

    def ask_view(self, _: int, question: bytes, is_passed_over: Callable[[bytes], bool]) -> bytes:
        self.least.append(unpack(question)["least"])
        return pack(next(self._answers))


def reflecting(upto: int, value: object) -> dict[str, object]:
    return {"Value": {"upto": upto, "value": pack(value)}}


class Answered(unittest.TestCase):
    """What a map takes of what nodes answer."""

    def of(self, lasts: Iterable[int | None], answers: Iterable[object]) -> tuple[Asked, ithaca_map.Map]:
        asked = Asked(lasts, answers)
        return asked, ithaca_map.Map(asked, "m")  # type: ignore[arg-type]

    def test_a_state_below_what_was_granted_and_never_written_is_the_newest(self) -> None:
        # The end of an epoch takes back what was granted last: the sequencer that comes says that the stream ends lower.
        asked, counts = self.of([530, 526], [reflecting(527, 7)])
        self.assertEqual((counts.size(), asked.least), (7, [531]))
        asked, counts = self.of([530, 530, 528], [reflecting(527, 7), reflecting(527, 7), reflecting(529, 8)])
        self.assertEqual((counts.size(), asked.least), (8, [531, 531, 529]))
        asked, counts = self.of([530, None], [reflecting(0, 0)])
        self.assertEqual(counts.size(), 0)

    def test_a_state_that_stays_below_what_was_granted_is_said_to_be_unavailable(self) -> None:
        asked, counts = self.of(itertools.repeat(530), itertools.repeat(reflecting(527, 7)))
        said = "^map `m`: Unavailable: its node reflects every position below 527, and below 531 is wanted"
        with self.assertRaisesRegex(ViewRefused, said) as refused:
            counts.size()
        self.assertEqual((refused.exception.reason, len(asked.least)), ("Unavailable", 16))

    def test_a_state_as_of_a_position_reflects_that_position(self) -> None:
        # Whoever answers early would have it shown what is not so.
        _, counts = self.of([], [reflecting(527, 7)])
        self.assertRaises(BadFrame, counts.size, at=528)
        _, counts = self.of([], [reflecting(528, 7)])
        self.assertEqual(counts.size(at=528), 7)

    def test_a_map_without_its_beginning_is_said_to_be_trimmed(self) -> None:
        for at in (None, 9):
            _, counts = self.of([5], [{"Refused": {"Trimmed": {"below": 7}}}])
            with self.assertRaisesRegex(ViewRefused, "^map `m`: Trimmed: it lacks what was trimmed below position 7$") as refused:
                counts.size(at)
            self.assertEqual((refused.exception.reason, refused.exception.details), ("Trimmed", {"below": 7}))


class Dev(unittest.TestCase):
    """Tests that share an `ithaca dev`, started with these flags."""

    flags: tuple[str, ...] = ()
    served: Served

    @classmethod
    def setUpClass(cls) -> None:
        cls.served = Served()
        cls.addClassCleanup(cls.served.stop)
        cls.served.start("dev", *cls.flags)


class OneProcess(Dev):
    """Three units and two copies: three stripes, and the log begins with each test where the last one ended."""

    flags = ("--units", "3", "--replicas", "2")

    def setUp(self) -> None:
        self.client = self.connected()
        self.start = self.client.tail()

    def connected(self, timeout: float = 10) -> Client:
        client = Client(self.served.endpoints, timeout)
        self.addCleanup(client.close)
        return client

    def test_what_either_appends_the_other_reads(self) -> None:
        entries = [b"", b"two", bytes(range(256)) * 40, *numbered("entry", 7)]
        for tokens in (False, True):
            start = self.client.tail()
            self.assertEqual(self.client.append_many(entries, tokens=tokens), list(range(start, start + 10)))
            expected = [(start + index, "data", entry) for index, entry in enumerate(entries)]
            self.assertEqual(shown(self.client.read_range(start, start + 10)), expected)
            self.assertEqual(self.served.lines("log", "read", "--from", str(start), "--to", str(start + 10)), expected)
        told = self.served.cli("log", "append", "--lines", given="x\ny\nz\n").split()
        self.assertEqual(
            shown(map(self.client.read, map(int, told))), [(int(at), "data", text) for at, text in zip(told, [b"x", b"y", b"z"])]
        )

    def test_many_batches_at_a_time_keep_their_order(self) -> None:
        entries = numbered("many", 3000)
        positions = self.client.append_many(entries)
        self.assertEqual(positions, list(range(self.start, self.start + 3000)))
        self.assertEqual([entry.data for entry in self.client.read_range(self.start, self.start + 3000)], entries)

    def test_an_entry_is_on_both_replicas_with_its_meta(self) -> None:
        for tokens in (False, True):
            for position in self.client.append_many(numbered("copied", 4), ["copies"], tokens=tokens):
                self.assertEqual(*self.copies(position))

    def copies(self, position: int) -> list[tuple[object, ...]]:
        """What each replica of the position says of it by itself."""
        layout, deadline = self.client.layout, time.monotonic() + 10
        (span,) = layout.spans(position, position + 1)
        found: list[tuple[object, ...]] = []
        for replica in span.replicas:
            connection = Connection(layout.nodes[replica].address, self.client.id, replica, layout.cluster)
            read = wire.READ(limit_bytes=wire.READ_MAX, committed=0, ranges=[wire.RANGE(start=span.start, end=span.end)])
            answer, data = connection.ask(wire.READ, read, layout.epoch, deadline)
            connection.close()
            run, meta = answer.runs[0], wire.META.decode(answer.runs[0].meta)
            found.append((data, meta.client, wire.request_at(meta, span.start), meta.groups, run.epoch))
        self.assertEqual(len(found), 2)
        return found

    def test_a_hole_is_filled_and_its_owner_finds_junk(self) -> None:
        layout = self.client.layout
        batch = self.client._batch([b"late", b"in time"], [])
        groups = wire.TOKEN(groups=batch.groups())
        grant, _ = self.client._ask(layout.sequencer, wire.TOKEN, groups, layout, time.monotonic() + 10)
        self.assertEqual(self.client.read(grant.first).kind, Kind.UNWRITTEN)
        self.assertEqual(self.client.fill(grant.first).kind, Kind.JUNK)
        # One position is lost, the other is the owner's still.
        self.assertEqual(self.client._write_batch(batch, grant.first, [], False, time.monotonic() + 10), [None, grant.first + 1])
        self.assertEqual(
            shown(self.client.read_range(grant.first, grant.first + 2)),
            [(grant.first, "junk", b""), (grant.first + 1, "data", b"in time")],
        )
        self.assertEqual(self.client.fill(grant.first + 1).data, b"in time")
        with self.assertRaises(Refused) as refused:
            self.client.fill(self.client.tail() + wire.FILL_MAX)
        self.assertEqual(refused.exception.code, Code.UNWRITTEN)

    def test_a_writer_that_died_after_the_first_replica_is_completed_by_a_fill(self) -> None:
        layout, deadline = self.client.layout, time.monotonic() + 10
        batch = self.client._batch([b"half"], [])
        grant, _ = self.client._ask(layout.sequencer, wire.TOKEN, wire.TOKEN(groups=batch.groups()), layout, deadline)
        (span,) = layout.spans(grant.first, grant.first + 1)
        first_only = wire.Span(span.replicas[:1], *span[1:])
        self.client._write_span(batch, grant.first, [], batch.table(), first_only, False, deadline)
        self.assertEqual(self.client.read(grant.first).kind, Kind.UNWRITTEN)
        self.assertEqual(self.client.fill(grant.first).data, b"half")
        self.assertEqual(*self.copies(grant.first))

    def test_an_answer_that_is_lost_appends_nothing_twice(self) -> None:
        # The client asks again, and must be told of the positions of the first copy, or find its entries by a search.
        for streams in ([], ["answers lost"]):
            self.client.append(b"before", streams)
            start, send = self.client.tail(), self.client._send_batch
            lost: list[int] = []

            def send_and_lose(batch, deadline):  # type: ignore[no-untyped-def]
                sent = send(batch, deadline)
                assert sent is not None
                if len(lost) < 2:
                    lost.append(batch.number)
                    connection, number = sent
                    connection.frame(number, deadline)
                    connection.close()
                return sent

            self.client._send_batch = send_and_lose  # type: ignore[method-assign]
            positions = self.client.append_many(numbered("once", 3), streams)
            self.client._send_batch = send  # type: ignore[method-assign]
            self.assertEqual((positions, lost), ([start, start + 1, start + 2], [lost[0]] * 2))
            self.assertEqual(self.client.tail(), start + 3)
            self.assertEqual([self.client.read(position).data for position in positions], numbered("once", 3))

    def test_a_search_finds_what_stands_there_and_makes_junk_of_the_rest(self) -> None:
        batch = self.client._batch(numbered("sought", 2), [])
        grant, _ = self.client._ask(
            batch.layout.sequencer, wire.TOKEN, wire.TOKEN(groups=batch.groups()), batch.layout, time.monotonic() + 10
        )
        for span in batch.layout.spans(grant.first, grant.first + 1):
            self.client._write_span(batch, grant.first, [], batch.table(), span, False, time.monotonic() + 10)
        found = self.client._search(batch, batch.after, self.client.tail(), time.monotonic() + 10)
        self.assertEqual(found, [grant.first, None])
        self.assertEqual(self.client.read(grant.first + 1).kind, Kind.JUNK)

    def test_positions_and_prefixes_are_trimmed(self) -> None:
        positions = self.client.append_many(numbered("trimmed", 8))
        self.client.trim(positions[5])
        kinds = [entry.kind for entry in self.client.read_range(positions[0], positions[7] + 1)]
        self.assertEqual(kinds, [Kind.TRIMMED if index == 5 else Kind.DATA for index in range(8)])
        names = {entry.data for entry in self.client._stream_entries(wire.NAMES, 0, positions[2])}
        self.client.trim_prefix(positions[2])
        self.assertEqual(self.client.first(), positions[2])
        releases = self.client._stream_entries(wire.RELEASED, positions[2], self.client.tail())
        checked = {"tail": positions[7] + 1 + len(names) + len(releases), "first": positions[2]}
        self.assertEqual(json.loads(self.served.cli("log", "check", "--json")), checked)
        self.assertEqual(
            [self.client.read(at).kind for at in (0, positions[1], positions[2])], [Kind.TRIMMED, Kind.TRIMMED, Kind.DATA]
        )
        with self.assertRaises(Refused) as refused:
            self.client.trim(self.client.tail())
        self.assertEqual(refused.exception.code, Code.UNWRITTEN)

    def test_a_stream_is_listed_when_what_is_below_was_trimmed(self) -> None:
        self.client.append(b"first", ["goes on"])
        end = self.client.append(b"second", ["goes on"])
        for _ in range(2):
            self.client.trim_prefix(end)
            listed = [json.loads(line)["stream"] for line in self.served.cli("stream", "ls", "--json").splitlines()]
            self.assertEqual(listed.count("goes on"), 1)
            end = self.client.tail()
        tail = self.client.tail()
        with self.assertRaises(Refused) as refused:
            self.client.trim_prefix(tail + 1)
        self.assertEqual((refused.exception.code, self.client.tail()), (Code.UNWRITTEN, tail))

    def test_a_trim_of_a_prefix_releases_what_it_leaves_nothing_of(self) -> None:
        entries = [self.client.append(b"of both", ["ended", "lasting"]) for _ in range(3)]
        self.served.cli("stream", "trim", "lasting", "1")
        end = self.client.append(b"of one", ["lasting"])
        for _ in range(2):
            self.client.trim_prefix(end)
            records = [entry.data for entry in self.client._stream_entries(wire.RELEASED, end, self.client.tail())]
            releases = {
                one.stream: (one.below, one.log_below)
                for record in records
                for one in wire.RELEASES.decode(wire.opened(b"ITrl", record)).releases
            }
            self.assertEqual(releases[wire.stream_id("ended")], (3, entries[2] + 1))
            self.assertEqual(releases[wire.stream_id("lasting")], (1, entries[0] + 1))
            self.assertEqual(len(records), 1)
        self.assertEqual([entry.position for entry in self.client.read_stream("lasting")], [end])

    def test_a_follower_is_pushed_each_position_and_passes_holes(self) -> None:
        follower = self.connected().follow(self.start, timeout=30)
        for text in numbered("followed", 20):
            position = self.client.append(text)
            self.assertEqual(next(follower), Entry(position, Kind.DATA, text, self.client.id, next_request(self.client)))
        grant, _ = self.client._ask(
            self.client.layout.sequencer, wire.TOKEN, wire.TOKEN(groups=[wire.GROUP(count=1, has_condition=0, streams=[])]),
            self.client.layout, time.monotonic() + 10,
        )  # fmt: skip
        self.assertEqual(next(follower), Entry(grant.first, Kind.JUNK))
        self.assertEqual(self.client.append(b"behind it"), grant.first + 1)
        self.assertEqual(next(follower).data, b"behind it")
        follower.close()
        self.assertEqual([entry.data for entry in self.client.follow(grant.first + 1, timeout=0.1)], [b"behind it"])

    def test_streams_are_shared_with_the_program(self) -> None:
        long_name = "a name of four blocks, " * 9
        both = self.client.append(b"in both", ["orders", long_name])
        self.served.cli("stream", "append", "orders", "--lines", given="theirs\nand theirs\n")
        ours = self.client.append_many(numbered("ours", 3), ["orders"], tokens=True)
        self.client.append(b"in none")
        expected = [(both, "data", b"in both"), (both + 1, "data", b"theirs"), (both + 2, "data", b"and theirs")]
        expected += [(position, "data", text) for position, text in zip(ours, numbered("ours", 3))]
        found = self.client.read_stream("orders")
        self.assertEqual(shown(found), expected)
        self.assertEqual(self.served.lines("stream", "read", "orders", "--from", "0", "--to", "6"), expected)
        self.assertEqual(
            [(place.position, place.previous) for entry in found for place in entry.places[:1]],
            list(zip(range(6), [None, *[at for at, _, _ in expected]])),
        )
        self.assertEqual(self.served.lines("stream", "read", long_name, "--from", "0", "--to", "1"), expected[:1])
        self.assertEqual(self.client.stream_end("orders"), (6, ours[2]))
        self.assertEqual(
            sorted(self.served.cli("stream", "ls", "--json").splitlines())[0:1],
            [json.dumps({"stream": long_name}, separators=(",", ":"))],
        )

    def test_a_stream_is_followed_while_others_append(self) -> None:
        follower = self.connected().follow_stream("news", self.start, timeout=30)
        for text in numbered("news", 5):
            self.client.append(b"something else")
            position = self.client.append(text, ["news", "more news"])
            entry = next(follower)
            self.assertEqual((entry.position, entry.data), (position, text))
        follower.close()

    def test_a_map_is_shared_with_the_program(self) -> None:
        ages = self.client.map("ages")
        self.assertEqual((ages.get("ann"), ages.size(), ages.items()), (None, 0, {}))
        self.served.cli("map", "put", "ages", "ann", "41")
        self.assertEqual(ages.get("ann"), "41")
        first = ages.put("ann", "42")
        self.assertEqual(json.loads(self.served.cli("map", "get", "ages", "ann", "--json")), {"key": "ann", "value": "42", "log_pos": first})
        last = ages.put("bob", "7")
        self.assertEqual((ages.get("ann", at=first), ages.placed("ann"), ages.contains("carl")), ("41", Placed("42", first), False))
        self.assertEqual(ages.multi_get(["bob", "carl", "ann"]), {"bob": "7", "ann": "42"})
        self.assertEqual(ages.items(), {"ann": "42", "bob": "7"})
        ages.remove("ann")
        self.assertEqual(self.served.cli("map", "ls", "ages"), "bob\t7\n")
        ages.clear()
        self.assertEqual((ages.size(), ages.size(at=last + 1), self.served.cli("map", "size", "ages")), (0, 2, "0\n"))

    def test_a_key_is_changed_only_if_it_is_as_known(self) -> None:
        locks, others = self.client.map("locks"), self.connected().map("locks")
        taken = locks.put_if_absent("backup", "one")
        self.assertEqual((taken.done, taken.found), (True, None))
        refused = others.put_if_absent("backup", "two")
        self.assertEqual((refused.done, refused.found), (False, Placed("one", taken.position)))
        self.assertFalse(others.remove_if("backup", refused.position).done)
        replaced = others.replace("backup", taken.position, "three")
        self.assertTrue(replaced.done and replaced.position > taken.position)
        self.assertEqual(locks.remove_if("backup", taken.position).found, Placed("three", replaced.position))
        removed = locks.remove_if("backup", replaced.position)
        self.assertEqual((removed, locks.get("backup")), (Replaced(True, removed.position), None))
        self.assertEqual(locks.replace("backup", removed.position, "four").found, None)
        number = locks.put("number", 7)
        self.served.cli("map", "del", "locks", "number", "--if-at", str(number))
        self.assertEqual(locks.items(), {})

    def test_keys_and_values_are_of_any_type(self) -> None:
        shapes = self.client.map("shapes")
        entries = {7: None, -5: 1.5, "a": {"name": "tri", "sides": 3}, (1, "b"): b"\x00\xff", True: ["x", [1]]}
        for key, value in entries.items():
            shapes.put(key, value)
        self.assertEqual(shapes.items(), entries)
        self.assertEqual((shapes.get(7, "none"), shapes.contains(7), shapes.get((1, "b"))), (None, True, b"\x00\xff"))
        self.assertEqual(self.served.cli("map", "get", "shapes", "a"), '{"name":"tri","sides":3}\n')

    def test_a_value_that_nodes_could_not_read_is_refused_before_anything_is_sent(self) -> None:
        # In the log it would end the map, for good: for nodes, and so for this client, and for the shell.
        deep, most, more = self.client.map("deep"), nested(DEPTH_MAX), nested(DEPTH_MAX + 1)
        deep.put("d", most)
        self.assertFalse(deep.put_if_absent("d", most).done)
        deep.put(most, most)
        tail = self.client.tail()
        for refused in (
            lambda: deep.put("d", more), lambda: deep.put(more, 1), lambda: deep.put_if_absent("e", more), lambda: deep.remove(more),
            lambda: deep.put_if_absent(more, 1), lambda: deep.get(more), lambda: deep.multi_get([more]),
            lambda: self.client.transact(lambda tx: tx.map("deep").put("d", more)),
        ):  # fmt: skip
            self.assertRaisesRegex(ValueError, f"more than {DEPTH_MAX} deep", refused)
        self.assertEqual(self.client.tail(), tail)
        self.assertEqual([pack(deep.get(key)) for key in ("d", most)], [pack(most)] * 2)
        self.assertEqual((len(deep.multi_get(["d", most])), len(deep.items())), (2, 2))
        self.served.cli("map", "checkpoint", "deep")
        self.assertEqual(len(self.served.cli("map", "ls", "deep").splitlines()), 2)

    def test_a_put_conflicts_with_transactions_over_its_key_and_no_other(self) -> None:
        ages = self.client.map("conflicts")
        before = ages.put("ann", "41")
        script = f"as-of {before}\nget conflicts ann\nput conflicts carl 1\n"
        ages.put("bob", "7")
        self.assertIn("committed", self.served.cli("tx", "-", given=script))
        ages.put("ann", "42")
        with self.assertRaisesRegex(AssertionError, "returncode=1.*ann"):
            self.served.cli("tx", "-", given=script)

    def test_a_node_that_takes_long_is_waited_for_as_long_as_it_answers_otherwise(self) -> None:
        # It may have to read all of the object's stream, which the next one would have to do too.
        slow = self.client.map("slow")
        slow.put("a", 1)
        asked = asked_nodes(self.client)
        settled, late = Connection.is_settled, iter(range(3))
        self.addCleanup(setattr, Connection, "is_settled", settled)
        Connection.is_settled = lambda *of: next(late, None) is None and settled(*of)  # type: ignore[method-assign]
        self.assertEqual((slow.get("a"), next(late, None)), (1, None))
        self.assertEqual(asked, self.client.layout.in_turn(wire.stream_id("slow"))[:1])

    def test_what_no_entry_may_be_is_refused_before_any_stream_is_named(self) -> None:
        long = bytes(wire.ENTRY_MAX + 1)
        for wrong, entry, streams in [
            ("17 streams, of at most 16", b"", [f"many {number}" for number in range(17)]),
            ("300 streams, of at most 16", b"", [f"many {number}" for number in range(300)]),
            ("in a stream once", b"", ["same", "other", "same"]),
            ("1048577 bytes, of at most 1048576", long, ["long"]),
            ("256 bytes, not of 1 to 255", b"", ["before it", "a" * 256]),
            ("a list of names", b"", "word"),
        ]:
            for tokens in (False, True):
                with self.assertRaisesRegex(ValueError, wrong):
                    self.client.append_many([b"first", entry], streams, tokens)
        with self.assertRaisesRegex(TypeError, "bytes, and no str"):
            self.client.append("text", ["text"])  # type: ignore[arg-type]
        self.assertEqual((self.client.append_many([], ["of nothing"]), self.client.tail()), ([], self.start))
        many = [f"{number} of 16" for number in range(16)]
        self.assertEqual(len(self.client.read(self.client.append(b"most", many)).places), 16)

    def test_a_change_that_fits_into_no_record_is_refused_before_any_map_is_named(self) -> None:
        def putting(maps: int, puts: int, reads: int = 0) -> None:
            def put(tx: Transaction) -> None:
                for number in range(puts):
                    tx.map(f"of many {number % maps}").put(number, number)
                for number in range(reads):
                    tx.map(f"of many {number % 20}").get(number)

            self.client.transact(put)

        value = bytes(ithaca_map.CALLS_BYTES_MAX)
        for wrong, change in [
            ("17 maps, of at most 16", lambda: putting(17, 17)),
            ("4097 calls, of at most 4096", lambda: putting(1, 4097)),
            ("1040 parts of maps, of at most 1024", lambda: putting(1, 1, 20 * 52)),
            ("bytes of calls, of at most 1044480", lambda: self.client.map("large").put(1, value)),
            ("bytes of calls, of at most 1044480", lambda: self.client.map("large").put_if_absent(1, value)),
            ("bytes about an object, of at most 1048576", lambda: self.client.map("large").get(bytes(1 << 20))),
        ]:
            self.assertRaisesRegex(ValueError, wrong, change)
        self.assertEqual(self.client.tail(), self.start)
        large = self.client.map("large")
        self.assertTrue(large.put_if_absent(1, value[:-50]).done)
        self.assertEqual(len(large.get(1)), len(value) - 50)

    def test_a_transaction_over_many_keys_of_a_map_is_one_over_all_of_it(self) -> None:
        # As one in Rust: a condition has no room for each, and one that is left out is a conflict that nobody sees.
        wide, other = self.client.map("wide"), self.connected().map("wide")
        runs: list[int] = []

        def copying(tx: Transaction, keys: range, meanwhile: int) -> None:
            inside = tx.map("wide")
            found = inside.multi_get(keys)
            for key in keys:
                inside.put(-1 - key, found.get(key, 0))
            runs.append(meanwhile)
            if len(runs) == 1:
                other.put(meanwhile, 7)

        for keys, meanwhile, times in [(range(2000), 5, 2), (range(65), 70, 2), (range(64), 70, 1)]:
            runs.clear()
            self.client.transact(lambda tx: copying(tx, keys, meanwhile))
            self.assertEqual(len(runs), times, keys)
        self.assertEqual((wide.size(), wide.get(-6)), (2002, 7))
        parts = ithaca_map._parts([("b", 7), ("a", 7), ("b", 7), ("a", ALL), *(("c", key) for key in range(65))])
        expected = [(wire.stream_id(name), key) for name, key in [("b", 7), ("a", ALL), ("c", ALL)]]
        self.assertEqual([(found.stream, found.key) for found in parts], expected)

    def test_a_transaction_is_there_as_a_whole_or_not_at_all(self) -> None:
        accounts, ledger = self.client.map("accounts"), self.client.map("ledger")
        accounts.put("ann", 10)

        def move(tx: Transaction) -> int:
            inside = tx.map("accounts")
            left = inside.get("ann") - 5
            inside.put("ann", left)
            inside.put("bob", inside.get("bob", 0) + 5)
            self.assertEqual(inside.multi_get(["ann", "bob"]), {"ann": left, "bob": 5})
            self.assertTrue(tx.map("ledger").put_if_absent(1, "5 from ann to bob").done)
            self.assertFalse(tx.map("ledger").put_if_absent(1, "again").done)
            return left

        self.assertEqual(self.client.transact(move), 5)
        self.assertEqual((accounts.items(), ledger.items()), ({"ann": 5, "bob": 5}, {1: "5 from ann to bob"}))
        placed = accounts.placed("bob")
        self.assertEqual(placed and placed.position, ledger.placed(1).position)
        with self.assertRaises(ZeroDivisionError):
            self.client.transact(lambda tx: tx.map("accounts").put("ann", 1 // 0))
        self.assertEqual(accounts.get("ann"), 5)

    def test_a_transaction_aborts_if_what_it_has_read_was_changed(self) -> None:
        shared, other = self.client.map("shared"), self.connected().map("shared")
        shared.put("a", 1)
        runs: list[int] = []

        def late(tx: Transaction) -> None:
            seen = tx.map("shared").get("a")
            runs.append(seen)
            if len(runs) == 1:
                other.put("a", 2)
            other.put("unrelated", len(runs))
            tx.map("shared").put("b", seen)

        self.client.transact(late)
        self.assertEqual((runs, shared.get("b")), ([1, 2], 2))
        runs.clear()
        other.put("a", 1)
        with self.assertRaises(Aborted) as aborted:
            self.client.transact(late, retries=0)
        self.assertEqual((aborted.exception.part, aborted.exception.name), (part(pack("a")), "shared"))
        self.assertRegex(str(aborted.exception), "part .* of `shared` was written")

        def counting(tx: Transaction) -> None:
            tx.map("sizes").put("size", tx.map("shared").size())
            other.put(f"more {len(runs)}", 1)

        self.assertRaises(Aborted, self.client.transact, counting, 0)
        self.assertEqual(self.client.map("sizes").size(), 0)

    def test_a_change_whose_outcome_is_unknown_leaves_its_number_open(self) -> None:
        numbers = self.client.map("numbers")
        numbers.put(1, 1)
        callers: list[tuple[int, int]] = []
        append = self.client._append_to

        def lost(entries, *more, **named):  # type: ignore[no-untyped-def]
            found = wire.OBJECT_RECORD.decode(entries[0][12:-4])
            callers.append((found.client, found.request))
            if len(callers) == 2:
                raise OutcomeUnknown(0)
            return append(entries, *more, **named)

        self.client._append_to = lost  # type: ignore[method-assign]
        numbers.put(2, 2)
        self.assertRaises(OutcomeUnknown, numbers.put, 3, 3)
        numbers.put(4, 4)
        (one, first), (two, second), (three, third) = callers
        self.assertTrue(one == two != three and (second, third) == (first + 1, 0), callers)
        self.assertEqual(numbers.items(), {1: 1, 2: 2, 4: 4})

    def test_a_position_that_is_none_is_said_to_be_none(self) -> None:
        # It would be read as one that is trimmed; and a change with such a version would end its map, for good.
        numbers = self.client.map("numbers of positions")
        numbers.put(1, 1)
        tail = self.client.tail()
        for wrong in (-1, wire.NONE, 1.5, True, "1"):
            for call in (
                self.client.read, self.client.fill, self.client.trim, self.client.trim_prefix, lambda at: next(self.client.follow(at)),
                lambda at: list(self.client.read_range(at, 1)), lambda at: self.client.read_stream("orders", at),
                lambda at: next(self.client.follow_stream("orders", at)), lambda at: numbers.get(1, at=at),
                lambda at: numbers.replace(1, at, 2), lambda at: numbers.remove_if(1, at),
                lambda at: self.client.transact(lambda tx: tx.map("numbers of positions").replace(1, at, 2)),
            ):  # fmt: skip
                self.assertRaisesRegex(ValueError, "is no position of the log", call, wrong)
        self.assertEqual((self.client.tail(), numbers.items()), (tail, {1: 1}))

    def test_endpoints_are_a_list_or_a_text_and_what_is_none_is_said(self) -> None:
        (endpoint,) = self.served.endpoints
        for given in (endpoint, f"{endpoint}, {endpoint}", (endpoint,)):
            client = Client(given)
            self.addCleanup(client.close)
            self.assertEqual(client.layout.cluster, self.client.layout.cluster)
        for wrong in ("", [], "localhost", ["localhost"], ["localhost:"], [":7420"], ["a:b"], "a:65536", [7420], "::1", ("127.0.0.1", 7420)):
            self.assertRaisesRegex(ValueError, 'no endpoints?: "HOST:PORT" is wanted', Client, wrong)

    def test_what_is_no_map_is_not_changed_and_what_is_not_there_is_said(self) -> None:
        self.served.cli("tx", "-", given="push things one\n")
        things = self.client.map("things")
        self.assertRaisesRegex(ViewRefused, "^map `things`: Stopped: the record at", things.put, "a", 1)
        self.assertEqual(self.served.cli("tx", "-", given="pop things\n").splitlines()[0], "one")
        with self.assertRaises(ViewRefused) as refused:
            self.client.map("ages").get("ann", at=1 << 40)
        self.assertEqual(refused.exception.reason, "NotYet")

    def test_a_node_says_what_it_is(self) -> None:
        layout = self.client.layout
        for node in layout.nodes:
            status = self.client.status(node)
            self.assertEqual((status.node, status.durability), (node, 1))
        self.assertGreaterEqual(self.client.status(layout.sequencer).tail, self.start)


def next_request(client: Client) -> int:
    """The request number of the last append of the client."""
    return client._next_request - 1


def asked_nodes(client: Client) -> list[int]:
    """The nodes that the client asks about objects from now on, in order."""
    asked: list[int] = []
    ask = client._ask_host

    def ask_and_note(node, *more):  # type: ignore[no-untyped-def]
        asked.append(node)
        return ask(node, *more)

    client._ask_host = ask_and_note  # type: ignore[method-assign]
    return asked


class Peer:
    """A connection on which anything is sent."""

    def __init__(self, address: str, greeted: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 10)
        if greeted:
            self.send(greeting())
            assert self.told() == (wire.HELLO_OK.kind, None)

    def send(self, raw: bytes) -> None:
        try:
            self._socket.sendall(raw)
        except ConnectionError:
            # The node has refused by closing it, which the next question shows.
            pass

    def told(self) -> tuple[int, Record | None]:
        """The kind of the next frame, and what it refuses; 0 once the connection has ended."""
        try:
            header = self._receive(wire.HEADER_LEN)
            frame = Frame.decode(header + self._receive(Frame.length(header) - wire.HEADER_LEN))
        except ConnectionError:
            return 0, None
        return frame.kind, wire.REFUSAL.decode(frame.body) if frame.kind == wire.REFUSAL.kind else None

    def refused(self, raw: bytes) -> tuple[int, int, int]:
        """What a frame is refused for: code, a and b."""
        self.send(raw)
        kind, refusal = self.told()
        assert refusal is not None, hex(kind)
        return refusal.code, refusal.a, refusal.b

    def serves(self) -> bool:
        """Whether the connection goes on."""
        self.send(request(wire.GET_STATUS))
        return self.told() == (wire.NODE_STATUS.kind, None)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, length: int) -> bytes:
        received = b""
        while len(received) < length:
            more = self._socket.recv(length - len(received))
            if not more:
                raise ConnectionError
            received += more
        return received


def request(message: Message, body: bytes = b"", data: bytes = b"", epoch: int = 1, flags: int = 0) -> bytes:
    return Frame(message.kind, flags, 9, epoch, body, data).encode()


def greeting(**differs: int) -> bytes:
    fields = {"version_min": 1, "version_max": 1, "client": 5, "node": 0, "cluster": 0} | differs
    return request(wire.HELLO, wire.HELLO.write(wire.HELLO(**fields)))


def patched(raw: bytes, offset: int, value: bytes) -> bytes:
    return raw[:offset] + value + raw[offset + len(value) :]


def write(entry: bytes, checksum: int | None = None, length: int | None = None, epoch: int = 1) -> bytes:
    """A write of an entry to an address of no stripe, with a table that is perhaps wrong."""
    row = wire.ROW(len=len(entry) if length is None else length, crc32c=wire.crc32c(entry) if checksum is None else checksum)
    meta = wire.META.write(wire.META(version=1, stride=1, client=5, anchor=1 << 60, request=0, groups=[]))
    return request(wire.WRITE, wire.WRITE.write(wire.WRITE(addr=1 << 60, meta=meta, table=[row])), entry, epoch)


class WrongBytes(Dev):
    """What no client should send is answered as the pages say, and others are served all the while."""

    def setUp(self) -> None:
        client = Client(self.served.endpoints)
        self.addCleanup(client.close)
        # Whatever a test has sent, the next client appends and reads.
        self.addCleanup(lambda: self.assertEqual(client.read(client.append(b"goes on")).data, b"goes on"))

    def peer(self, greeted: bool = True) -> Peer:
        peer = Peer(self.served.endpoints[0], greeted)
        self.addCleanup(peer.close)
        return peer

    def test_a_frame_that_is_none_ends_the_connection(self) -> None:
        status = request(wire.GET_STATUS)
        flagged = status[:10] + bytes([8]) + status[11:]
        frames = {
            "longer than any frame": patched(status, 0, struct.pack("<I", wire.FRAME_MAX + 1)),
            "2^32 - 1 bytes": patched(status, 0, b"\xff" * 4),
            "a body longer than the frame": patched(status, 12, b"\x08"),
            "too much data": patched(status, 0, struct.pack("<I", wire.DATA_MAX + 1)),
            "a wrong checksum": patched(status, 4, b"\0\0\0\0"),
            "an unknown flag": patched(flagged, 4, struct.pack("<I", wire.crc32c(flagged[8:]))),
            "another protocol": b"GET / HTTP/1.1\r\nHost: ithaca\r\nAccept: */*\r\n\r\n",
        }
        for name, raw in frames.items():
            with self.subTest(name):
                peer = self.peer()
                peer.send(raw)
                self.assertEqual(peer.told(), (0, None))

    def test_a_body_that_is_none_is_refused_and_the_connection_goes_on(self) -> None:
        read = wire.READ.write(wire.READ(limit_bytes=100, committed=0, ranges=[wire.RANGE(start=0, end=1)]))
        rows = [wire.RANGE(start=at, end=at + 1) for at in range(1024)]
        bodies = [
            (wire.READ, read[:-1]),
            (wire.READ, read + b"\0"),
            (wire.READ, patched(read, 4, b"\2")),
            (wire.READ, patched(read, 5, b"\1")),
            (wire.READ, patched(read, 0, struct.pack("<I", wire.READ_MAX + 1))),
            (wire.READ, patched(read, 8, b"\xff" * 4)),
            (wire.READ, patched(read, 20, bytes(8))),
            (wire.READ, struct.pack("<IBBHI", 100, 0, 0, 0, 1025) + b"".join(map(wire.RANGE.write, [*rows, rows[0]]))),
            (wire.FILL, wire.FILL.write(wire.FILL(ranges=[wire.RANGE(start=0, end=wire.FILL_MAX + 1)]))),
            (wire.TOKEN, wire.TOKEN.write(wire.TOKEN(groups=[]))),
            (wire.TOKEN, wire.TOKEN.write(wire.TOKEN(groups=[wire.GROUP(count=0, has_condition=0, streams=[])]))),
            (wire.TOKEN, wire.TOKEN.write(wire.TOKEN(groups=[wire.GROUP(count=1, has_condition=0, streams=[7, 7])]))),
            (wire.GET_STATUS, b"\0"),
            (wire.RUNS, bytes(8)),
            (wire.REFUSAL, bytes(24)),
            (Message(0x7777), b"of a later version"),
            (Message(0x000A), b""),
        ]
        peer = self.peer()
        for message, body in bodies:
            with self.subTest(kind=message.kind, body=body[:40]):
                self.assertEqual(peer.refused(request(message, body)), (Code.UNDECODABLE, message.kind, 0))
        self.assertEqual(peer.refused(request(wire.GET_STATUS, data=b"for nobody")), (Code.UNDECODABLE, wire.GET_STATUS.kind, 0))
        self.assertEqual(peer.refused(write(b"entry", length=6)), (Code.UNDECODABLE, wire.WRITE.kind, 0))
        self.assertEqual(peer.refused(write(bytes(wire.ENTRY_MAX + 1))), (Code.UNDECODABLE, wire.WRITE.kind, 0))
        self.assertEqual(peer.refused(write(b"entry", checksum=1)), (Code.CHECKSUM, 0, 0))
        self.assertEqual(peer.refused(request(wire.UNSUBSCRIBE)), (Code.NO_SUBSCRIPTION, 0, 0))
        peer.send(request(wire.CREDIT, bytes(8)))
        self.assertTrue(peer.serves())

    def test_a_greeting_that_is_none_is_refused_and_ends_the_connection(self) -> None:
        client = Client(self.served.endpoints)
        self.addCleanup(client.close)
        cluster = client.layout.cluster
        for raw, expected in [
            (request(wire.GET_STATUS), (Code.GREETING, 0, 0)),
            (request(wire.HELLO, bytes(39)), (Code.UNDECODABLE, 1, 0)),
            (greeting(version_min=2, version_max=3), (Code.NO_VERSION, 1, 1)),
            (greeting(cluster=3), (Code.OTHER_CLUSTER, cluster >> 64, cluster & wire.NONE)),
            (greeting(node=999), (Code.OTHER_NODE, client.layout.sequencer, 0)),
        ]:
            peer = self.peer(greeted=False)
            self.assertEqual(peer.refused(raw), expected)
            self.assertEqual(peer.told(), (0, None))
        long = self.peer(greeted=False)
        long.send(request(wire.HELLO, bytes(1025)))
        self.assertEqual(long.told(), (0, None))
        twice = self.peer()
        self.assertEqual(twice.refused(greeting()), (Code.GREETING, 0, 0))
        self.assertTrue(twice.serves())
        later = self.peer(greeted=False)
        later.send(greeting(version_max=9))
        self.assertEqual(later.told(), (wire.HELLO_OK.kind, None))

    def test_a_frame_that_comes_in_parts_is_answered_when_it_is_whole(self) -> None:
        # Each part comes after somebody else was answered, and the last peer is gone in the middle of its frame.
        raw, other = write(b"entry", checksum=1), self.peer()
        for cut in (1, 7, 31, 32, 33, len(raw) - 1):
            peer = self.peer()
            peer.send(raw[:cut])
            self.assertTrue(other.serves())
            self.assertEqual(peer.refused(raw[cut:]), (Code.CHECKSUM, 0, 0))
            self.assertTrue(peer.serves())
        gone = self.peer()
        gone.send(raw[:40])
        gone.close()
        self.assertTrue(other.serves())

    def test_an_epoch_that_was_never_decided_ends_none(self) -> None:
        # A number in the wrong order of bytes would otherwise end every epoch there is and will be, for good.
        peer = self.peer()
        ranges = wire.FILL.write(wire.FILL(ranges=[wire.RANGE(start=1 << 60, end=(1 << 60) + 1)]))
        for epoch in (wire.NONE, 1 << 56, 1 << 32, 2):
            self.assertEqual(peer.refused(write(b"entry", epoch=epoch)), (Code.NO_LAYOUT, epoch, 0))
            self.assertEqual(peer.refused(request(wire.FILL, ranges, epoch=epoch)), (Code.NO_LAYOUT, epoch, 0))
            self.assertEqual(peer.refused(request(wire.TRIM, ranges, epoch=epoch)), (Code.NO_LAYOUT, epoch, 0))


class Servers(unittest.TestCase):
    """Three servers with two copies, of which one is killed while the client works."""

    def setUp(self) -> None:
        self.served = Served()
        self.addCleanup(self.served.stop)
        for node in (1, 2, 3):
            self.served.start("server", "--node", str(node))
        named = [f"{node}={address}" for node, address in enumerate(self.served.endpoints, 1)]
        self.served.cli("cluster", "init", *named)
        self.client = Client(self.served.endpoints, timeout=30)
        self.addCleanup(self.client.close)

    def kill(self, node: int) -> None:
        process = self.served.processes[node - 1]
        process.kill()
        process.wait()

    def killing(self, node: int, sends: int) -> None:
        """Has the node killed when the client has sent so many more batches, with as many answers on their way as it likes."""
        send, left = self.client._send_batch, iter(range(sends, 0, -1))

        def send_and_kill(batch, deadline):  # type: ignore[no-untyped-def]
            sent = send(batch, deadline)
            if next(left, 0) == 1:
                self.kill(node)
            return sent

        self.client._send_batch = send_and_kill  # type: ignore[method-assign]

    def test_a_sequencer_that_is_killed_costs_no_entry_and_doubles_none(self) -> None:
        follower = self.client_of_its_own().follow(0, timeout=30)
        begun = self.client.append_many(numbered("begun", 10))
        epoch, entries = self.client.layout.epoch, numbered("killed", 8000)
        self.killing(self.client.layout.sequencer, sends=4)
        positions = self.client.append_many(entries)
        self.assertGreater(self.client.layout.epoch, epoch)
        ended = self.client.append(b"ended", ["after the end"])
        self.check(follower, [*zip(begun, numbered("begun", 10)), *zip(positions, entries), (ended, b"ended")])
        self.assertEqual(shown(self.client.read_stream("after the end")), [(ended, "data", b"ended")])

    def test_nodes_that_stand_still_cost_no_entry_and_double_none(self) -> None:
        # Nobody closes their connections: what they owe an answer to ends once the others have gone on.
        numbers, acknowledged = self.client.map("numbers"), list[tuple[int, bytes]]()
        for is_sequencer in (True, False):
            self.client.append(b"begun")
            layout = self.client.layout
            silent = next(node for node in layout.nodes if (node == layout.sequencer) == is_sequencer)
            process = self.served.processes[silent - 1]
            process.send_signal(signal.SIGSTOP)
            entries = numbered(f"silent {is_sequencer}", 3000)
            acknowledged += zip(self.client.append_many(entries, tokens=not is_sequencer), entries)
            numbers.put(is_sequencer, silent)
            self.client.transact(lambda tx: tx.map("sums").put("sum", tx.map("sums").get("sum", 0) + 1))
            self.assertNotEqual(self.client.layout.nodes[silent].state, wire.IN_USE)
            process.send_signal(signal.SIGCONT)
            while self.client.layout.nodes[silent].state != wire.IN_USE:
                self.client._learner.look(self.client.layout, time.monotonic() + 10)
        self.assertEqual((numbers.size(), self.client.map("sums").items()), (2, {"sum": 2}))
        everything = self.client.read_range(0, self.client.tail())
        found = [(entry.position, entry.data) for entry in everything if entry.data.startswith(b"silent")]
        self.assertEqual(sorted(acknowledged), found)

    def test_a_unit_that_is_killed_between_grant_and_write_costs_no_entry_and_doubles_none(self) -> None:
        follower = self.client_of_its_own().follow(0, timeout=30)
        layout, entries = self.client.layout, numbered("killed", 30)
        ask = self.client._ask
        asked: list[int] = []

        def ask_and_kill(node, message, *more):  # type: ignore[no-untyped-def]
            if message is wire.WRITE and node != layout.sequencer and not asked:
                asked.append(node)
                self.kill(node)
            return ask(node, message, *more)

        self.client._ask = ask_and_kill  # type: ignore[method-assign]
        positions = self.client.append_many(entries, tokens=True)
        self.assertGreater(self.client.layout.epoch, layout.epoch)
        self.check(follower, list(zip(positions, entries)))

    def test_no_transfer_is_lost_or_doubled_when_the_sequencer_is_killed(self) -> None:
        accounts = self.client.map("accounts")
        for account in range(4):
            accounts.put(account, 100)

        def move(tx: Transaction, number: int) -> None:
            inside = tx.map("accounts")
            inside.put(number % 4, inside.get(number % 4) - 1)
            inside.put((number + 1) % 4, inside.get((number + 1) % 4) + 1)
            tx.map("done").put(number, True)

        for number in range(24):
            if number == 8:
                self.kill(self.client.layout.sequencer)
            self.client.transact(lambda tx: move(tx, number))
        self.assertEqual(accounts.items(), {account: 100 for account in range(4)})
        self.assertEqual(self.client_of_its_own().map("done").size(), 24)

    def test_a_map_goes_on_without_a_node(self) -> None:
        numbers, other = self.client.map("numbers"), self.client_of_its_own().map("numbers")
        for number in range(30):
            if number == 10:
                self.kill(self.client.layout.sequencer)
            self.assertTrue(numbers.put_if_absent(number, 2 * number).done)
            self.assertEqual(other.get(number), 2 * number)
        self.assertEqual(other.items(), {number: 2 * number for number in range(30)})

    def test_a_node_that_is_silent_is_not_asked_again_once_the_cluster_goes_on_without_it(self) -> None:
        layout = self.client.layout
        silent = next(node for node in layout.nodes if node != layout.sequencer)
        names = [name for name in map(str, range(40)) if layout.in_turn(wire.stream_id(name))[0] == silent][:6]
        end = max(self.client.map(name).put("a", 1) or 0 for name in names) + 1
        other = self.client_of_its_own()
        self.served.processes[silent - 1].send_signal(signal.SIGSTOP)
        for _ in range(400):
            self.client._learner.look(self.client.layout, time.monotonic() + 10)
            if self.client.layout.nodes[silent].state != wire.IN_USE:
                break
        asked = asked_nodes(self.client)
        for name in names:
            self.assertEqual(self.client.map(name).get("a"), 1)
        self.assertEqual(asked, [self.client.layout.in_turn(wire.stream_id(name))[0] for name in names])
        # Who knows of nothing yet finds out by asking it once, and needs no sequencer for that.
        asked = asked_nodes(other)
        for name in names:
            self.assertEqual(other.map(name).get("a", at=end), 1)
        self.assertEqual((asked.count(silent), asked[0], len(asked)), (1, silent, len(names) + 1))

    def client_of_its_own(self) -> Client:
        client = Client(self.served.endpoints, timeout=30)
        self.addCleanup(client.close)
        return client

    def check(self, follower: Generator[Entry, None, None], acknowledged: list[tuple[int, bytes]]) -> None:
        """Everything acknowledged stands where it was said to, once, for a reader, a follower and the program."""
        tail = self.client.tail()
        followed = shown(next(follower) for _ in range(tail))
        follower.close()
        data = [(position, text) for position, kind, text in followed if kind == "data"]
        names = {b"after the end"}
        self.assertEqual(sorted(acknowledged), [(position, text) for position, text in data if text not in names])
        self.assertEqual(shown(self.client.read_range(0, tail)), followed)
        self.assertEqual(self.served.lines("log", "read", "--from", "0", "--to", str(tail)), followed)


if __name__ == "__main__":
    unittest.main()
