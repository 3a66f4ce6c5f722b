"""Output of function_graph becomes call trees: real traces of 6.1 and 6.12, and their irregularities."""

from conftest import SAMPLES

from labkit.common.call_trees import Reader, Tree

ROOTS = ("udp_sendmsg", "udpv6_sendmsg", "tcp_sendmsg", "net_rx_action")
HEAD = " 0)   iperf3-7     "


def read(name: str) -> tuple[list[Tree], Reader]:
    reader = Reader(ROOTS)
    with open(SAMPLES / f"function_graph-{name}.txt") as lines:
        return list(reader.read(lines)), reader


def short(*lines: str) -> list[str]:
    """Return a trace of one process with these `DURATION|BODY` lines."""
    return [f"{HEAD}|{line}\n" for line in lines]


def test_datagram_over_a_bridge() -> None:
    trees, reader = read("6.1-bridge")
    receiver, sender = trees
    assert (receiver.root.name, sender.root.name) == ("net_rx_action", "udp_sendmsg")
    assert (sender.cpu, sender.process) == (0, "iperf3-162")
    assert (len(sender.calls), sender.root.total_ns) == (231, 527_301)
    assert (reader.lost_count, reader.broken_count) == (0, 0)
    result = [call for call in sender.calls if call.name == "br_handle_frame"]
    assert [(call.module, call.depth) for call in result] == [("bridge", 18)]
    assert {"__dev_queue_xmit", "process_backlog", "ip_rcv", "__udp_enqueue_schedule_skb"} <= sender.names()
    assert not sender.disturbed
    assert sender.lines[0].endswith("|  udp_sendmsg() {")
    assert sender.lines[-1].endswith("|  } /* udp_sendmsg */")
    again = list(Reader().read(line for tree in trees for line in [*tree.lines, "# between"]))
    assert [tree.calls for tree in again] == [tree.calls for tree in trees]


def test_self_times_add_up() -> None:
    for name in ("6.1-bridge", "6.12-interrupted", "6.12-ipv6", "6.12-processes"):
        trees, _ = read(name)
        assert trees
        for tree in trees:
            assert sum(call.self_ns for call in tree.calls) == tree.root.total_ns
            assert [call.depth for call in tree.calls].count(0) == 1
            assert all(
                after.depth <= before.depth + 1
                for before, after in zip(tree.calls, tree.calls[1:], strict=False)
            )
            for at, call in enumerate(tree.calls):
                below = []
                for other in tree.calls[at + 1 :]:
                    if other.depth <= call.depth:
                        break
                    below += [other.total_ns] * (other.depth == call.depth + 1)
                assert call.total_ns == call.self_ns + sum(below)


def test_processes_and_interrupts() -> None:
    trees, reader = read("6.12-processes")
    assert [(tree.process, tree.root.name, tree.root.total_ns) for tree in trees] == [
        ("iperf3-242", "tcp_sendmsg", 52_317),
        ("iperf3-158", "net_rx_action", 256_730),
        ("ksoftir-17", "net_rx_action", 138_395),
    ]
    assert reader.broken_count == 0
    assert all("finish_task_switch" not in line for tree in trees for line in tree.lines)
    # In the second call, an interrupt came after the tracer had ended a call and before it left it: the kernel prints
    # the interrupt's functions as if they were inside the call, deeper than any open one.
    trees, reader = read("6.12-interrupted")
    assert [(tree.disturbed, len(tree.calls)) for tree in trees] == [(True, 269)]
    assert reader.broken_count == 1


def test_interleaved_processes_and_cpus() -> None:
    lines = [
        " 0)  a-1   |               |  f() {\n",
        " 1)  b|c-2  |               |  f() {\n",  # a process may have any name
        " 0)  a-1   |   1.000 us    |    g();\n",
        " 1)  b|c-2  |   2.000 us    |    g();\n",
        " 1)  b|c-2  | @ 3000000 us  |  } /* f */\n",
        " 2)  a-1   | $ 4000000 us  |  }\n",  # continued on another CPU
    ]
    trees = list(Reader(["f"]).read(lines))
    assert [(tree.process, tree.root.total_ns, tree.root.self_ns) for tree in trees] == [
        ("b|c-2", 3_000_000_000, 2_999_998_000),
        ("a-1", 4_000_000_000, 3_999_999_000),
    ]


def test_optional_columns() -> None:
    bare = [" 1)               |  f() {\n", " 1) + 10.500 us   |    g [m]();\n", " 1) ! 100.250 us  |  }\n"]
    timed = [
        "  12.5 |   1)  a-1   |               |  f() {\n",
        "  12.6 |   1)  a-1   | + 10.500 us   |    g [m](x=1, y=2); /* = 0x0 */\n",
        "  12.7 |   1)  a-1   | ! 100.250 us  |  } /* f ret=0 */\n",
    ]
    for lines, process in ((bare, ""), (timed, "a-1")):
        [tree] = Reader(["f"]).read(lines)
        assert (tree.cpu, tree.process) == (1, process)
        assert [(call.name, call.module, call.total_ns, call.self_ns) for call in tree.calls] == [
            ("f", "", 100_250, 89_750),
            ("g", "m", 10_500, 10_500),
        ]


def test_lost_events_arrows_and_invalid_lines() -> None:
    whole = short("               |  f() {", "   1.000 us    |    g();", "   2.000 us    |  } /* f */")
    reader = Reader(["f"])
    trees = list(reader.read([*whole, *whole[:2], "CPU:0 [LOST 77 EVENTS]\n", whole[2], *whole, whole[0]]))
    assert len(trees) == 2
    assert reader.lost_count == 77
    assert reader.broken_count == 2, "that which lost events, and that which had not ended"
    lines = short(
        "               |  f() {", "   ==========> |", "   1.000 us    |    irq();", "   <========== |",
        "               |    /* a marker */", "   2.000 us    |  } /* f */",
    )  # fmt: skip
    [tree] = Reader(["f"]).read(lines)
    assert [call.name for call in tree.calls] == ["f", "irq"]
    assert tree.disturbed
    assert len(tree.lines) == len(lines)
    lines = [
        "",
        "|||\n",
        "CPU 3 went\n",
        " 0)   |   |\n",
        f"{HEAD}|  us |  }}\n",
        f"{HEAD}| 1 us |      f();\n",
    ]
    assert list(Reader(["f"]).read(lines)) == []
