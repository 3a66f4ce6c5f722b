"""Display filters: a tshark that hangs, and tables of bounded size."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from example_frames import ethernet, ip, udp
from sandbox import shell_program, until

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.packets import ETHERNET
from labkit.measure.observers.monitor import display_filter
from labkit.measure.observers.monitor.display_filter import Tshark
from labkit.measure.observers.monitor.kept import Row
from labkit.system.machine import programs

Tool = Callable[[str], str]


@pytest.fixture
def tshark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Return a function that makes a shell script the program tshark."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return functools.partial(shell_program, tmp_path, "tshark")


@pytest.mark.parametrize(
    "script",
    ["exec sleep 60", "while :; do echo 'Frame 1: \\t60 bytes'; sleep 0.02; done"],
    ids=["hangs", "of another version"],
)
def test_tshark_without_an_answer_is_given_up(
    script: str, tshark: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tshark(script)
    monkeypatch.setattr(display_filter, "SILENT_S", 0.2)
    one = Tshark("ip", ETHERNET)
    one.add([(0, 0, "in", 60, bytes(60), ())])
    assert one.awaiting_count == 1
    rows: list[Row] = []
    assert until(lambda: rows.extend(one.matching_rows()) or one.problem, 20)
    assert rows == []
    assert "did not answer within 0.2 s" in str(one.problem)
    one.add([(1, 0, "in", 60, bytes(60), ())])
    assert (one.awaiting_count, one.unexamined_count, one.hidden_count) == (0, 2, 0)
    one.close()


def test_missing_tshark_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_MORE_PATH", [])
    with pytest.raises(
        Unsupported, match=r"the program tshark is not installed .*: dnf install wireshark-cli"
    ):
        display_filter.check("ip")


@pytest.mark.long
@pytest.mark.needs("tshark")
def test_parentheses_within_quotes() -> None:
    """Only those outside of a string have to match, and only tshark knows which these are."""
    for text in ('frame contains "("', r'frame matches "\\)"', '(ip or frame contains ")")'):
        display_filter.check(text)
    for text in ("ip) or (ip", '(frame contains ")"', 'frame contains "'):
        with pytest.raises(BadInput, match=r"^tshark refuses "):
            display_filter.check(text)
    with pytest.raises(BadInput, match="the display filter is empty"):
        display_filter.check(" ")
    with pytest.raises(BadInput, match="characters"):
        display_filter.check("(" * 100_000)


def test_invalid_field_name_is_refused() -> None:
    for text in (
        "$(id)", "-r", "ip.ttl -w /tmp/x", "ip.ttl,,ip.src", "a" * 101, "ip\nsrc", ",".join(["ip.src"] * 17),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="field"):
            display_filter.field_names(text)


@pytest.mark.needs("tshark")
def test_fields_are_checked_and_their_values_are_texts() -> None:
    """A packet's content is in a value; it adds no line to tshark's answer and no control character to the terminal."""
    with pytest.raises(BadInput, match=r"tshark does not know the fields foo\.bar: "):
        display_filter.check("ip", ["ip.ttl", "foo.bar"])
    text = b"<13>\n3\t\x1b[2J<script>"
    frame = ethernet(ip(udp(text, 514), "10.0.0.1 > 10.0.0.2", 17, ttl=7))
    one = Tshark(None, ETHERNET, display_filter.field_names("ip.ttl, syslog.msg, tcp.seq, _ws.col.Protocol"))
    one.add([(number, 0, "in", len(frame), frame, ()) for number in range(3)])
    rows: list[Row] = []
    assert until(lambda: rows.extend(one.matching_rows()) or not one.awaiting_count or one.problem, 60)
    assert one.problem is None
    one.close()
    assert [row[0] for row in rows] == [0, 1, 2]
    for row in rows:
        ttl, message, missing, protocol = row[5]
        assert (ttl, missing, protocol) == ("7", "", "Syslog")
        assert "<script>" in message
        assert message.isprintable()


def test_packets_beyond_the_pipe_are_counted(tshark: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    tshark("exec sleep 60")
    monkeypatch.setattr(display_filter, "MAX_PENDING_BYTES", 10_000)
    one = Tshark("ip", ETHERNET)
    for number in range(100):
        one.add([(number, 0, "in", 1000, bytes(1000), ())])
    assert one.awaiting_count + one.unexamined_count == 100
    assert one.awaiting_count < 20
    one.close()


@pytest.mark.parametrize(
    ("expression", "fields", "what"),
    [
        (None, ("ip.ttl",), "fields=ip.ttl"),
        ("ip", ("ip.ttl", "tcp.seq"), "the display filter 'ip' with fields=ip.ttl,tcp.seq"),
    ],
)
def test_what_tshark_answers_to_a_check_is_one_sentence(
    expression: str | None, fields: tuple[str, ...], what: str, tshark: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nonsense, reason in (
        ("echo 'tshark: No memory.' >&2; exit 1", "No memory"),
        ("exit 3", "tshark gives no reason"),
        ("echo; exit 3", "tshark gives no reason"),
        (r"printf '\377\033[2J\n     ^\n' >&2; exit 3", r"\S*\\x1b\[2J \(at character 2\)"),
    ):
        tshark(nonsense)
        with pytest.raises(BadInput, match=f"^tshark refuses {what}: {reason}$") as raised:
            display_filter.check(expression, fields)
        assert str(raised.value).isprintable()
    tshark("kill -9 $$")
    killed = f"^tshark did not check {what}: .*tshark was ended by SIGKILL: try again"
    with pytest.raises(Failed, match=killed):
        display_filter.check(expression, fields)
    tshark("exec sleep 60")
    monkeypatch.setattr(display_filter, "CHECK_S", 0.05)
    with pytest.raises(Failed, match=f"^tshark did not check {what} within 0.05 s: try again"):
        display_filter.check(expression, fields)
