"""Options of the load's sockets, at both ends, as a text: `nodelay=off sndbuf=65536`."""

from labkit.common.errors import BadInput, choose
from labkit.common.limits import Limit, OneOf, Within

SWITCH = OneOf(("on", "off"))
BUFFER = Within(4096, 1 << 28, "smaller ones the kernel rounds up")
OPTIONS: dict[str, Limit] = {
    "sndbuf": BUFFER,  # SO_SNDBUF, in bytes
    "rcvbuf": BUFFER,  # SO_RCVBUF
    "nodelay": SWITCH,  # TCP_NODELAY: off is Nagle's algorithm
    "quickack": SWITCH,  # TCP_QUICKACK: off delays acknowledgements
    "busy_poll": Within(0, 1_000_000, "in µs"),  # SO_BUSY_POLL
    "writes": Within(1, 64),  # into which a request is divided
}
OF_TCP = ("nodelay", "quickack", "writes")
EXAMPLE = "nodelay=off sndbuf=65536"


def parse(text: str | None) -> dict[str, int]:
    """Return the options in a text by name, as setsockopt(2) takes them. Raises BadInput."""
    result: dict[str, int] = {}
    for word in (text or "").split():
        name, equals, value = word.partition("=")
        if not equals or name in result:
            raise BadInput(f"socket={text!r} is not valid: write each option once, for example {EXAMPLE}")
        if name not in OPTIONS:
            raise BadInput(f"socket={name}: there is no such option: {choose(name, OPTIONS)}")
        given = OPTIONS[name].parse(f"socket {name}", value)
        result[name] = given == "on" if isinstance(given, str) else given
    return result
