"""Which layout a cluster has: connections to its nodes, what they tell, and waits that end once the cluster goes on by a newer layout.

Whoever owes an answer may be gone, and the others know it first. So a wait that lasts has all of them asked to tell of a newer layout
(`WatchLayout`), at the same time. Times are those of `time.monotonic`, in seconds.
"""

from __future__ import annotations

import time

import ithaca_wire as wire
from ithaca_node import PATIENCE_S, Connection, Late, Refused, pump
from ithaca_wire import NONE, Error, Layout, Lost, Message, Record

# A wait that has lasted so long has every node asked for a newer layout.
STALL_S = 0.1
# So long a node that knows none may wait for one before it answers all the same.
WATCH_MS = 500
# No node is asked again sooner than that.
AGAIN_S = 0.05
# Requests by an older layout are waited for no longer than that, once there is a newer one.
GRACE_S = 0.03
# How long other endpoints are waited for when one has told its layout.
GATHER_S = 0.1


class Learner:
    """The newest layout of the cluster that is served at any of the endpoints, and a connection to each of its nodes that was needed."""

    def __init__(self, endpoints: list[str], client: int, deadline: float) -> None:
        self._endpoints, self._client, self._cluster = endpoints, client, 0
        self._connections: dict[str, Connection] = {}
        self._watches: dict[str, tuple[Connection, int]] = {}
        self._asked_at: dict[str, float] = {}
        try:
            self.layout = self._first_layout(deadline)
        except (Error, ValueError):
            self.close()
            raise
        self._cluster, self._since = self.layout.cluster, time.monotonic()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def connection(self, address: str, node: int) -> Connection:
        """The connection to the address, a new one if there is none. A new one is to this node; to any if that is 0."""
        connection = self._connections.get(address)
        if connection is not None:
            # So that it is known whether it has ended meanwhile.
            connection.advance()
        if connection is None or connection.closed:
            connection = self._connections[address] = self.new_connection(address, node)
        return connection

    def new_connection(self, address: str, node: int) -> Connection:
        return Connection(address, self._client, node, self._cluster)

    def ask(
        self, node: int, message: Message, record: Record, layout: Layout, until: float, data: bytes = b""
    ) -> tuple[Record, bytes]:
        """What a node of the layout answers, which is waited for as `wait` says."""
        connection = self.connection(layout.nodes[node].address, node)
        return self.answer(connection, connection.send(message, record, layout.epoch, data), message, layout, until)

    def answer(self, connection: Connection, request: int, message: Message, layout: Layout, until: float) -> tuple[Record, bytes]:
        self.wait(connection, request, layout, until)
        return connection.answer(request, message, 0.0)

    def wait(self, connection: Connection, request: int, layout: Layout, until: float) -> None:
        """Waits until a request that was made by the layout is answered, or will not be: not once there is a newer layout, nor by a node
        that says nothing at all. One that is slow, and answers other requests, is waited for until then."""
        stalls = time.monotonic() + STALL_S
        while not connection.is_settled(request):
            now = time.monotonic()
            if now >= stalls:
                self._watch()
            if self.layout.epoch > layout.epoch:
                until = min(until, max(self._since, connection.sent_at(request)) + GRACE_S)
            if now >= until or connection.closed:
                return
            if now < stalls:
                pump([connection], min(until, stalls))
            else:
                pump({connection, *self._connections.values()}, until)

    def look(self, layout: Layout, until: float) -> None:
        """Waits for a layout newer than this one. That no node tells of any until then is no error here."""
        while self.layout.epoch <= layout.epoch:
            self._watch()
            if time.monotonic() >= until:
                return
            if self.layout.epoch <= layout.epoch:
                pump(self._connections.values(), until)

    def _watch(self) -> None:
        """Takes the newer layout that a node has told of, and has every node asked to tell of the next one as soon as it knows it."""
        for address in dict.fromkeys([node.address for node in self.layout.nodes.values()] + self._endpoints):
            connection = self._connections.get(address)
            if connection is not None:
                connection.advance()
                if connection.is_silent():
                    connection.end(Lost(f"{address}: no answer for {PATIENCE_S} seconds"))
            watch = self._watches.get(address)
            if watch is not None and watch[0].is_settled(watch[1]):
                self._take(*self._watches.pop(address))
                watch = None
            if watch is None and time.monotonic() >= self._asked_at.get(address, 0.0) + AGAIN_S:
                self._ask_to_tell(address)

    def _ask_to_tell(self, address: str) -> None:
        self._asked_at[address] = time.monotonic()
        watch = wire.WATCH_LAYOUT(known=self.layout.epoch, wait_ms=WATCH_MS)
        try:
            connection = self.connection(address, 0)
            self._watches[address] = connection, connection.send(wire.WATCH_LAYOUT, watch, 0)
        except (Lost, Refused):
            pass

    def _take(self, connection: Connection, request: int) -> None:
        try:
            layout = Layout(connection.answer(request, wire.WATCH_LAYOUT, 0.0)[0].record)
        except (Lost, Refused):
            return
        if layout.cluster == self._cluster and layout.epoch > self.layout.epoch:
            self.layout, self._since = layout, time.monotonic()

    def _first_layout(self, deadline: float) -> Layout:
        """The newest layout that the endpoints tell of. All are asked at the same time, so that one that is silent keeps nobody waiting."""
        asked: dict[str, tuple[Connection, int]] = {}
        told: dict[str, Layout] = {}
        trouble: Error = Lost("no endpoints")
        for address in dict.fromkeys(self._endpoints):
            try:
                connection = self.connection(address, 0)
                asked[address] = connection, connection.send(wire.GET_LAYOUT, wire.GET_LAYOUT(epoch=NONE), 0)
            except Lost as error:
                trouble = error
        while asked and time.monotonic() < deadline:
            pump([connection for connection, _ in asked.values()], deadline)
            for address, (connection, request) in list(asked.items()):
                if connection.is_settled(request):
                    del asked[address]
                    try:
                        told[address] = Layout(connection.answer(request, wire.GET_LAYOUT, 0.0)[0].record)
                        deadline = min(deadline, time.monotonic() + GATHER_S)
                    except (Lost, Refused) as error:
                        trouble = error
        for address, (connection, _) in asked.items():
            # It was greeted as one of any cluster.
            connection.close()
            trouble = Late(f"{address}: no answer in time")
        if not told:
            raise trouble
        return newest(told)


def newest(told: dict[str, Layout]) -> Layout:
    """The newest of the layouts that these endpoints have told of. Raises `ValueError` if they are of different clusters: whose entries are
    meant nobody knows then. An endpoint does not count that tells of another cluster than a layout which lists it: its address was given to
    that one's server since."""

    def is_meant(layout: Layout) -> bool:
        others = {address for address, other in told.items() if other.cluster != layout.cluster}
        return others <= {node.address for node in layout.nodes.values()}

    meant = [layout for layout in told.values() if is_meant(layout)]
    if not meant:
        clusters = {layout.cluster: address for address, layout in told.items()}
        listed = ", ".join(f"{address} of {cluster:032x}" for cluster, address in clusters.items())
        raise ValueError(f"endpoints of different clusters: {listed}")
    return max(meant, key=lambda layout: layout.epoch)
