"""Tests of how a client learns which layout a cluster has, and of waits for nodes that are silent or slow: each test says what its nodes
answer. [test_ithaca.py](test_ithaca.py) runs them."""

from __future__ import annotations

import socket
import threading
import unittest
from collections.abc import Callable
from unittest import mock

import ithaca_node
import ithaca_wire as wire
from ithaca import Client, OutcomeUnknown
from ithaca_node import Code, Connection
from ithaca_wire import FORWARDER, NONE, Frame, Lost, Message, Record

CLUSTER = 7
Answer = tuple[Frame, Message, Record]


def layout(epoch: int, sequencer: int, addresses: list[str], cluster: int = CLUSTER) -> bytes:
    """The record of a layout of nodes at these addresses, the first of which has the id 1; each holds all of the log's entries."""
    nodes = [Record(id=node, roles=7 | FORWARDER, state=wire.IN_USE, address=address) for node, address in enumerate(addresses, 1)]
    fields = wire.LAYOUT(
        magic=int.from_bytes(b"ITly", "little"), version=1, body_len=0, cluster=cluster, epoch=epoch, sequencer=sequencer,
        next_base=1 << 60, replicas=1, min_replicas=1, nodes=nodes, spreads=[[[node.id for node in nodes]]],
        ranges=[Record(start=0, spread=0, bases=[0])], end=NONE, tails=[], checksum=0,
    )  # fmt: skip
    fields.body_len = len(wire.LAYOUT.write(fields)) - 16
    fields.checksum = wire.crc32c(wire.LAYOUT.write(fields)[:-4])
    return wire.LAYOUT.write(fields)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"{host}:{port}"


class Node:
    """A node that greets everybody, and answers other requests as `answers` says: with answers to that one or to earlier ones."""

    def __init__(self, cluster: int = CLUSTER) -> None:
        self.answers: Callable[[Frame], list[Answer]] = lambda _: []
        self.asked: list[int] = []
        self.connections, self._cluster = 0, cluster
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = address_of(self._listener)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Ends the thread that accepts, too.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except OSError:
            pass

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as received:
            try:
                while header := received.read(wire.HEADER_LEN):
                    frame = Frame.decode(header + received.read(Frame.length(header) - wire.HEADER_LEN))
                    for request, message, record in self._greet(frame) or self._answer(frame):
                        connection.sendall(Frame(message.kind, 0, request.request_id, 0, message.write(record)).encode())
            except OSError:
                pass

    def _greet(self, frame: Frame) -> list[Answer]:
        if frame.kind != wire.HELLO.kind:
            return []
        if wire.HELLO.decode(frame.body).cluster not in (0, self._cluster):
            return [(frame, wire.REFUSAL, wire.REFUSAL(code=Code.OTHER_CLUSTER, a=0, b=self._cluster))]
        limits = {"entry_max": 1 << 20, "write_max": 1 << 20, "read_max": 1 << 20, "run_max": 1024, "grant_max": 1024}
        return [(frame, wire.HELLO_OK, wire.HELLO_OK(version=1, cluster=self._cluster, node=1, incarnation=1, **limits))]

    def _answer(self, frame: Frame) -> list[Answer]:
        self.asked.append(frame.kind)
        return self.answers(frame)


def telling(record: bytes, *kinds: Message) -> Callable[[Frame], list[Answer]]:
    """Answers requests of these kinds with a layout, and no others."""
    told = wire.LAYOUT_RECORD(record=record)
    return lambda frame: [(frame, wire.LAYOUT_RECORD, told)] if frame.kind in [kind.kind for kind in kinds] else []


def ending_at(tail: int, frame: Frame) -> list[Answer]:
    """Answers that the log ends there, if that was asked."""
    return [(frame, wire.TAIL, wire.TAIL(tail=tail, extents=[], streams=[]))] if frame.kind == wire.CHECK.kind else []


class Learning(unittest.TestCase):
    """A client goes on as soon as any node knows how."""

    def node(self, cluster: int = CLUSTER) -> Node:
        node = Node(cluster)
        self.addCleanup(node.close)
        return node

    def connected(self, *nodes: Node) -> Client:
        client = Client([node.address for node in nodes])
        self.addCleanup(client.close)
        return client

    def pair(self) -> tuple[Node, Node, list[bytes]]:
        """Two nodes that tell the first layout, in which the first one is the sequencer, and the layouts of two epochs."""
        nodes = self.node(), self.node()
        layouts = [layout(epoch, epoch, [node.address for node in nodes]) for epoch in (1, 2)]
        for node in nodes:
            node.answers = telling(layouts[0], wire.GET_LAYOUT)
        return *nodes, layouts

    def test_endpoints_are_asked_at_the_same_time(self) -> None:
        # One that is silent took as long as the whole call may: of a process that stands still the system accepts connections.
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        one, two, is_asked = self.node(), self.node(), threading.Event()
        self.addCleanup(is_asked.set)
        record = layout(3, 1, [one.address])
        one.answers = lambda frame: telling(record, wire.GET_LAYOUT)(frame) if is_asked.wait() else []

        def note_asked(_: Frame) -> list[Answer]:
            is_asked.set()
            return []

        two.answers = note_asked
        client = Client([address_of(silent), one.address, two.address], timeout=5)
        self.addCleanup(client.close)
        self.assertEqual(client.layout.epoch, 3)

    def test_the_newest_layout_that_endpoints_tell_of_counts(self) -> None:
        one, two, layouts = self.pair()
        two.answers = telling(layouts[1], wire.GET_LAYOUT)
        self.assertEqual([self.connected(*nodes).layout.epoch for nodes in ((one, two), (two, one), (one,))], [2, 2, 1])

    def test_a_call_goes_on_by_the_layout_that_another_node_tells_of(self) -> None:
        # It is told only to whoever waits for it.
        one, two, layouts = self.pair()
        two.answers = lambda frame: telling(layouts[1], wire.WATCH_LAYOUT)(frame) or ending_at(9, frame)
        one.answers = telling(layouts[0], wire.GET_LAYOUT)
        client = self.connected(one)
        self.assertEqual((client.tail(), client.layout.epoch), (9, 2))
        self.assertEqual((one.asked.count(wire.CHECK.kind), two.asked.count(wire.CHECK.kind)), (1, 1))

    def test_who_answers_late_but_answers_is_waited_for(self) -> None:
        node, asked = self.node(), list[Frame]()
        record = layout(1, 1, [node.address])

        def late(frame: Frame) -> list[Answer]:
            asked.append(frame)
            watches = [one for one in asked if one.kind == wire.WATCH_LAYOUT.kind]
            told = telling(record, wire.GET_LAYOUT, wire.WATCH_LAYOUT)(frame)
            return told + [answer for one in asked if len(watches) == 3 for answer in ending_at(9, one)]

        node.answers = late
        self.assertEqual(self.connected(node).tail(), 9)
        self.assertEqual((node.asked.count(wire.CHECK.kind), node.connections), (1, 1))

    def test_a_connection_on_which_nothing_comes_is_given_up_for_another(self) -> None:
        # The machine at its other end may have been started anew, and know nothing of it.
        node = self.node()
        record = layout(1, 1, [node.address])
        node.answers = lambda frame: telling(record, wire.GET_LAYOUT)(frame) or (ending_at(9, frame) if node.connections > 1 else [])
        client = self.connected(node)
        with mock.patch.object(ithaca_node, "PATIENCE_S", 0.0):
            self.assertEqual((client.tail(), node.connections > 1), (9, True))

    def test_an_append_that_may_have_been_granted_stays_unknown(self) -> None:
        one, _, _ = self.pair()
        client = self.connected(one)
        client._timeout = 1.0
        self.assertRaises(OutcomeUnknown, client.append, b"entry")
        self.assertIn(wire.APPEND.kind, one.asked)

    def test_a_connection_that_was_closed_says_so(self) -> None:
        # It said "Bad file descriptor".
        node = self.node()
        connection = Connection(node.address, 5, 0, 0)
        asked = connection.send(wire.GET_STATUS, wire.GET_STATUS(), 0)
        connection.close()
        closed = f"^{node.address}: connection closed$"
        self.assertRaisesRegex(Lost, closed, connection.send, wire.GET_STATUS, wire.GET_STATUS(), 0)
        self.assertRaisesRegex(Lost, closed, connection.answer, asked, wire.GET_STATUS, 0.0)

    def test_endpoints_of_two_clusters_are_refused(self) -> None:
        # The one of the higher epoch was taken, whichever was meant.
        one, other = self.node(), self.node(0xABC)
        one.answers = telling(layout(1, 1, [one.address]), wire.GET_LAYOUT)
        other.answers = telling(layout(9, 1, [other.address], 0xABC), wire.GET_LAYOUT)
        for nodes in ((one, other), (other, one)):
            with self.assertRaisesRegex(ValueError, "^endpoints of different clusters: ") as refused:
                self.connected(*nodes)
            for node, cluster in ((one, CLUSTER), (other, 0xABC)):
                self.assertIn(f"{node.address} of {cluster:032x}", str(refused.exception))

    def test_an_endpoint_that_was_given_to_another_cluster_does_not_count(self) -> None:
        one, other = self.node(), self.node(0xABC)
        one.answers = telling(layout(1, 1, [one.address, other.address]), wire.GET_LAYOUT)
        other.answers = telling(layout(9, 1, [other.address], 0xABC), wire.GET_LAYOUT)
        for nodes in ((one, other), (other, one)):
            self.assertEqual(self.connected(*nodes).layout.cluster, CLUSTER)

    def test_a_client_takes_nothing_of_another_cluster(self) -> None:
        # One of its nodes' addresses was given to another cluster's since.
        one, other = self.node(), self.node(0xABC)
        own, foreign = layout(1, 1, [one.address, other.address]), layout(9, 1, [other.address], 0xABC)
        watched: list[Frame] = []

        def late(frame: Frame) -> list[Answer]:
            watched.append(frame)
            told = telling(own, wire.GET_LAYOUT)(frame) + telling(foreign, wire.WATCH_LAYOUT)(frame)
            return told + [answer for one in watched if len(watched) == 4 for answer in ending_at(9, one)]

        one.answers, other.answers = late, telling(foreign, wire.GET_LAYOUT, wire.WATCH_LAYOUT)
        client = self.connected(one)
        self.assertEqual((client.tail(), client.layout.cluster, client.layout.epoch, other.asked), (9, CLUSTER, 1, []))
        self.assertGreater(other.connections, 0)


if __name__ == "__main__":
    unittest.main()
