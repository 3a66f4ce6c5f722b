"""Filters in libpcap's syntax (pcap-filter(7)), compiled by libpcap itself to classic BPF for a packet socket.

libpcap is loaded when the first filter is compiled. Nothing here captures.
"""

import ctypes
import functools

from labkit.common.errors import BadInput, Unsupported
from labkit.common.packets import RAW_IP

LIBRARY = "libpcap.so.0.8"
# The parser and the optimizer of libpcap take long, or much of the stack, for what nobody writes by hand.
MAX_CHARACTERS = 4096
MAX_GENERATED = 1 << 16  # of a filter that contains one that somebody wrote
MAX_NESTED = 64
ERROR_BYTES = 256  # PCAP_ERRBUF_SIZE
INSTRUCTION_BYTES = 8  # struct bpf_insn and struct sock_filter
BUFFER_BYTES = 1 << 16  # of the handle that only compiles
DLT_RAW = 12  # libpcap's own number of RAW_IP, which is that of files (pcap/dlt.h)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("instructions", ctypes.c_void_p))


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises Unsupported where libpcap is not installed."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise Unsupported(
            f"packets cannot be filtered in the kernel without {LIBRARY}: install Debian's package libpcap0.8"
        ) from None
    handle, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("pcap_open_dead", handle, (number, number)),
        ("pcap_create", handle, (text, text)),
        ("pcap_set_snaplen", number, (handle, number)),
        ("pcap_set_buffer_size", number, (handle, number)),
        ("pcap_activate", number, (handle,)),
        ("pcap_compile", number, (handle, ctypes.POINTER(_Program), text, number, ctypes.c_uint32)),
        ("pcap_geterr", text, (handle,)),
        ("pcap_freecode", None, (ctypes.POINTER(_Program),)),
        ("pcap_close", None, (handle,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(expression: str, limit: int = MAX_CHARACTERS) -> None:
    """Raise BadInput for a text that cannot be a filter because of its length, its characters or its parentheses."""
    if len(expression) > limit:
        raise BadInput(
            f"the filter has {len(expression)} characters: it may have {limit} at most; shorten it"
        )
    if not expression.isprintable() or not expression.isascii():
        raise BadInput(
            f"the filter {expression[:80]!r} has characters that no filter has: write it in plain ASCII"
        )
    depth = 0
    for letter in expression:
        depth += (letter == "(") - (letter == ")")
        if depth > MAX_NESTED:
            raise BadInput(f"the filter nests more than {MAX_NESTED} parentheses: write it with fewer")


def compiled(expression: str, link_type: int, snap_bytes: int, interface: str | None = None) -> bytes:
    """Compile a filter to the instructions of a classic BPF program, which takes `snap_bytes` of every packet that
    matches.

    `link_type` is that of files. With `interface`, of the network namespace of the calling thread, the program also
    finds VLAN tags that the kernel keeps beside the packet; that needs CAP_NET_RAW. Raises BadInput, with libpcap's
    words, for what is not a filter, Unsupported where libpcap is missing.
    """
    check(expression, MAX_GENERATED)
    library = _library()
    if interface is None:
        handle = library.pcap_open_dead(DLT_RAW if link_type == RAW_IP else link_type, snap_bytes)
    else:
        handle = _activate(library, interface, snap_bytes)
    program = _Program()
    try:
        if library.pcap_compile(handle, program, expression.encode(), 1, 0xFFFFFFFF):
            text = library.pcap_geterr(handle).decode(errors="replace")
            raise BadInput(f"the filter {expression[:200]!r} is not valid: {text}")
        size = program.length * INSTRUCTION_BYTES
        result = ctypes.string_at(program.instructions, size)
        library.pcap_freecode(program)
        return result
    finally:
        library.pcap_close(handle)


def _activate(library: ctypes.CDLL, interface: str, snap_bytes: int) -> int:
    """A handle at an interface; at lo, for which the same is compiled, if it is down. Raises Unsupported without the
    right, or if both are down."""
    words = ctypes.create_string_buffer(ERROR_BYTES)
    for name in (interface, "lo"):
        handle: int = library.pcap_create(name.encode(), words)
        library.pcap_set_snaplen(handle, snap_bytes)
        library.pcap_set_buffer_size(handle, BUFFER_BYTES)
        if library.pcap_activate(handle) >= 0:
            return handle
        text = library.pcap_geterr(handle).decode(errors="replace")
        library.pcap_close(handle)
    raise Unsupported(f"libpcap cannot compile a filter for {interface}: {text or 'no reason is given'}")
