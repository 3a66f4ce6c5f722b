"""The user's own display filter and fields, in Wireshark's words, evaluated by tshark on what the sampler chose.

tshark gets the filter as one argument, each field's name as another, and packets on its standard input. It prints the
numbers of those that match, and the values of the fields. A packet with a comment of ours follows each batch and always
matches, so it is known how far tshark has come.
"""

import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence

from labkit.common.errors import BadInput, Failed
from labkit.common.packets import ETHERNET, pcapng
from labkit.common.printable import printable
from labkit.measure.observers.monitor.kept import Row
from labkit.system import libpcap, machine, process

CHECK_S = 15.0
SILENT_S = 15.0  # until a tshark that does not answer is killed; its start takes about a second
MAX_PENDING_BYTES = 8 << 20  # what waits for tshark's pipe; packets beyond it are not examined
MAX_EXAMINED = 200_000  # tshark remembers conversations for ever, so a new one takes over
OPTIONS = ("-n", "-l", "-r", "-")
_MARK = bytes(64)

FIELD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
MAX_FIELDS, MAX_VALUE = 16, 500  # values are cut to so many characters


def check_text(expression: str) -> None:
    """Raise BadInput for a text that cannot be a display filter because it is empty, or of its length or characters.

    Quotes and parentheses are left to tshark, which knows their syntax.
    """
    libpcap.check(expression)
    if not expression.strip():
        raise BadInput("the display filter is empty: write one, or leave display out")


def field_names(text: str) -> tuple[str, ...]:
    """Return the names in a text such as `ip.ttl,tcp.seq`. Raises BadInput for what cannot be a field's name."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    for name in names:
        if not FIELD.fullmatch(name):
            raise BadInput(f"{name[:80]!r} cannot be a field: write names such as ip.ttl,_ws.col.Info")
    if len(names) > MAX_FIELDS:
        raise BadInput(f"there are {len(names)} fields: {MAX_FIELDS} are possible at most")
    return names


def check(expression: str | None, fields: Sequence[str] = ()) -> None:
    """Let tshark check a display filter and fields.

    Raises BadInput with tshark's message and the position of the error, Unsupported if tshark is missing, and Failed if
    it hangs or is killed.
    """
    if expression is not None:
        check_text(expression)
    empty = pcapng.header([("check", ETHERNET)], 256)
    ended = process.run(_argv(expression, fields), CHECK_S, empty)
    if ended.returncode == 0 and not ended.timed_out:
        return
    if ended.timed_out or ended.returncode < 0:
        how = f" within {CHECK_S:g} s" if ended.timed_out else f": {ended.message()}"
        what = f"tshark did not check {_given(expression, fields)}{how}"
        raise Failed(f"{what}: try again, or leave out display or fields")
    if "fields aren't valid" in ended.stderr:
        unknown = ", ".join(ended.stderr.partition("fields aren't valid:")[2].split())
        raise BadInput(
            f"tshark does not know the fields {unknown[:200]}: choose from those that `tshark -G fields` lists"
        )
    raise BadInput(f"tshark refuses {_given(expression, fields)}: {_sentence(ended.stderr)}")


def _given(expression: str | None, fields: Sequence[str]) -> str:
    """Return what tshark checked, for messages."""
    parts = [] if expression is None else [f"the display filter {expression[:200]!r}"]
    parts += [f"fields={','.join(fields)[:200]}"] if fields else []
    return " with ".join(parts)


def _argv(expression: str | None, fields: Sequence[str]) -> list[str]:
    """The command: each packet that matches is a line with its number and the values of the fields, with tabs."""
    shown = [word for name in ("frame.number", *fields) for word in ("-e", name)]
    chosen = [] if expression is None else ["-Y", expression]
    return [machine.require_program("tshark"), *OPTIONS, *chosen, "-T", "fields", *shown]


def _sentence(text: str) -> str:
    """tshark's message in one line, with the position that it points to."""
    lines = [line for line in text.splitlines() if not line.startswith("Running as user")]
    first = printable(lines[0].removeprefix("tshark: ").rstrip(".").strip()[:MAX_VALUE]) if lines else ""
    words = first or "tshark gives no reason"
    pointers = [line for line in lines if re.fullmatch(r"\s*\^~*\s*", line)]
    return words + (f" (at character {pointers[0].index('^') - 3})" if pointers else "")


class Tshark:
    """A running tshark, with a display filter, fields, or both.

    `add` gives it packets, `judged` returns those that matched (all without a filter), and the counts say what became
    of the others. After a failure `problem` says what happened, and no packet is examined any more.
    """

    def __init__(self, expression: str | None, link_type: int, fields: Sequence[str] = ()) -> None:
        self._expression, self._fields, self._link_type = expression, fields, link_type
        self.hidden_count = self.unexamined_count = 0
        self.problem: str | None = None
        # with its number in tshark's count; None is a mark
        self._awaiting: deque[tuple[int, Row | None]] = deque()
        self._start()

    def _start(self) -> None:
        self._mark = secrets.token_hex(8)
        words = None
        if self._expression is not None:
            words = f'({self._expression}) or frame.comment == "{self._mark}"'
        self._tshark = process.Piped(_argv(words, self._fields))
        self._pending = bytearray(pcapng.header([("monitor", self._link_type)], 1 << 18))
        self._heard = b""
        self._given = 0
        self._since = time.monotonic()

    @property
    def awaiting_count(self) -> int:
        """Packets that tshark has not judged yet."""
        return sum(row is not None for _number, row in self._awaiting)

    def descriptors(self) -> list[tuple[int, bool]]:
        """Return the descriptors to wait for, and whether each is to be written to."""
        if self.problem:
            return []
        return [(self._tshark.stdout, False), *([(self._tshark.stdin, True)] if self._pending else [])]

    def add(self, rows: list[Row]) -> None:
        """Give it packets, in the order of their arrival."""
        if self.problem or len(self._pending) > MAX_PENDING_BYTES or self._given >= MAX_EXAMINED:
            self.unexamined_count += len(rows)
            return
        if not rows:
            return
        if not self._awaiting:
            self._since = time.monotonic()
        for row in rows:
            _number, time_ns, direction, length_bytes, data, _values = row
            self._put(row, pcapng.packet(0, time_ns, pcapng.DIRECTION_FLAGS[direction], length_bytes, data))
        self._put(None, pcapng.packet(0, time.time_ns(), 1, len(_MARK), _MARK, self._mark))

    def _put(self, row: Row | None, block: bytes) -> None:
        self._given += 1
        self._awaiting.append((self._given, row))
        self._pending += block

    def matching_rows(self) -> Iterator[Row]:
        """Feed tshark and read its answers; yield the packets that matched, in their order, with their values."""
        if self.problem:
            return
        if self._pending:
            del self._pending[: self._tshark.feed(bytes(self._pending[: 1 << 16]))]
        content = self._tshark.received()
        if content is None:
            self._fail()
            return
        *lines, self._heard = (self._heard + content).split(b"\n")
        for line in lines:
            number, *values = line.decode(errors="replace").split("\t")
            if number.isdecimal():
                self._since = time.monotonic()
                yield from self._until(int(number), tuple(printable(one[:MAX_VALUE]) for one in values))
        if self._awaiting and time.monotonic() - self._since > SILENT_S:
            self._fail(f"tshark did not answer within {SILENT_S:g} s")
        elif not self._awaiting and self._given >= MAX_EXAMINED:
            self._tshark.kill()
            self._start()

    def _until(self, number: int, values: tuple[str, ...]) -> Iterator[Row]:
        """The packet of that number matched, and those before it that still wait did not."""
        while self._awaiting and self._awaiting[0][0] <= number:
            at, row = self._awaiting.popleft()
            if row is None:
                continue
            if at == number:
                yield (*row[:5], values)
            else:
                self.hidden_count += 1

    def _fail(self, text: str | None = None) -> None:
        ended = self._tshark.kill()
        self.problem = f"{text or ended}: no packet is examined any more; start the monitor again"
        self.unexamined_count += self.awaiting_count
        self._awaiting.clear()
        self._pending.clear()

    def close(self) -> None:
        if self.problem is None:
            self._tshark.kill()
