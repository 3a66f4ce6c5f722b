"""JSON-RPC to the daemons of Open vSwitch over their Unix sockets: OVSDB (RFC 7047) and ovs-appctl(8) commands.

The package `ovs` encodes and decodes. Every call has a deadline, which the package's own blocking calls lack. The
package is imported on first use, because the import takes 30 ms (in an emulated guest 1 s).
"""

import errno
import os
import time
from pathlib import Path
from typing import Any

from labkit.common import errors
from labkit.common.errors import Failed

DATABASE = "Open_vSwitch"
PATIENCE_S = 10.0


class Connection:
    """A connection to a daemon's Unix socket."""

    def __init__(self, path: Path) -> None:
        import ovs.jsonrpc
        import ovs.stream

        self._path = path
        deadline = time.monotonic() + PATIENCE_S
        while True:  # the socket's file exists before the daemon listens
            error, stream = ovs.stream.Stream.open_block(ovs.stream.Stream.open(f"unix:{path}"))
            if error not in (errno.ECONNREFUSED, errno.ENOENT) or time.monotonic() > deadline:
                break
            time.sleep(0.002)
        if error:
            raise Failed(f"{path.name} of Open vSwitch cannot be reached: {os.strerror(error)}")
        self._rpc = ovs.jsonrpc.Connection(stream)

    def close(self) -> None:
        self._rpc.close()

    def call(self, method: str, *parameters: Any) -> Any:
        """Call a method and return its result. Raises Failed with the daemon's message, or if no answer comes in
        time."""
        import ovs.jsonrpc

        request = ovs.jsonrpc.Message.create_request(method, list(parameters))
        error = self._rpc.send(request)
        answer = None
        deadline = time.monotonic() + PATIENCE_S
        while not error and (answer is None or answer.id != request.id):
            self._rpc.run()
            error, answer = self._rpc.recv()
            if error == errno.EAGAIN:
                error, answer = 0, None
                self._wait(deadline, method)
            elif answer is not None and answer.method == "echo":
                # OVSDB asks whether we live (RFC 7047, 4.1.11).
                self._rpc.send(ovs.jsonrpc.Message.create_reply(answer.params, answer.id))
                answer = None
        if error:
            why = "it has ended" if error < 0 else os.strerror(error)
            raise Failed(f"{self._path.name} of Open vSwitch did not answer {method}: {why}")
        assert answer is not None, "the loop ends with an answer or an error"
        if answer.error is not None:
            raise Failed(f"Open vSwitch refused {method}: {_error_text(answer.error)}")
        return answer.result

    def _wait(self, deadline: float, method: str) -> None:
        import ovs.poller

        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise Failed(f"{self._path.name} of Open vSwitch did not answer {method} in time")
        poller = ovs.poller.Poller()
        self._rpc.wait(poller)
        self._rpc.recv_wait(poller)
        poller.timer_wait(int(left_s * 1000) + 1)
        poller.block()


class Database(Connection):
    """The database of a switch."""

    def transact(self, *operations: dict[str, Any]) -> list[dict[str, Any]]:
        """Run operations (RFC 7047, 5.2) as one transaction; return their results. Raises Failed with the first
        error."""
        results: list[Any] = self.call("transact", DATABASE, *operations)
        for result in results:
            if result is not None and "error" in result:
                raise Failed(f"Open vSwitch refused a change of its configuration: {_error_text(result)}")
        return results

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return these columns of all rows of a table, as Python values."""
        [result] = self.transact({"op": "select", "table": table, "where": [], "columns": list(columns)})
        return read_rows(result)


@errors.reading("an answer of Open vSwitch's database")
def read_rows(result: Any) -> list[dict[str, Any]]:
    """Return the rows of a `select` (RFC 7047, 5.2.2) as Python values."""
    return [{name: plain(value) for name, value in row.items()} for row in result["rows"]]


def plain(value: Any) -> Any:
    """Convert an OVSDB value: a set to a list, a map to a dict, a UUID to its text."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
        return value
    kind, content = value
    if kind == "set":
        return [plain(one) for one in content]
    if kind == "map":
        return {plain(key): plain(one) for key, one in content}
    return content  # uuid, named-uuid


def a_set(values: list[Any]) -> list[Any]:
    return ["set", values]


def a_map(values: dict[str, str]) -> list[Any]:
    return ["map", [[key, value] for key, value in values.items()]]


def named_uuid(name: str) -> list[str]:
    """Return a reference to a row that the same transaction inserts under this name."""
    return ["named-uuid", name]


def _error_text(error: Any) -> str:
    if isinstance(error, dict):
        return ": ".join(str(error[name]) for name in ("error", "details") if error.get(name))
    return " ".join(str(error).split())
