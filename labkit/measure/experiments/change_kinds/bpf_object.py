"""Object files of minimal BPF programs that let every packet pass, to measure the cost of a program without work.

The format is ELF for BPF (EM_BPF) as libbpf reads it: a section with instructions, a license, and a symbol for the
function (Linux, Documentation/bpf/libbpf; elf(5)).
"""

import struct

from labkit.system import bpf

# Return values that pass a packet on: XDP_PASS (linux/bpf.h), TC_ACT_OK (linux/pkt_cls.h)
PASS = {"xdp": 2, "tc": 0}
EM_BPF, ET_REL = 247, 1
PROGBITS, SYMTAB, STRTAB = 1, 2, 3
ALLOC_EXEC, ALLOC_WRITE = 6, 3
HEADER_BYTES, SECTION_BYTES, SYMBOL_BYTES = 64, 64, 24


def pass_program(section: str) -> bytes:
    """Return the object file of a program that returns PASS[section] for every packet, in a section of that name."""
    code = bpf.returning(PASS[section])
    names = b"\0" + section.encode() + b"\0license\0.symtab\0.strtab\0pass\0"
    # struct Elf64_Sym: name, info (global function), other, section, value, size
    symbols = bytes(SYMBOL_BYTES) + struct.pack("<IBBHQQ", names.index(b"pass\0"), 0x12, 0, 1, 0, len(code))
    parts = [
        (section, PROGBITS, ALLOC_EXEC, code, 8, 0, 0),
        ("license", PROGBITS, ALLOC_WRITE, b"GPL\0", 1, 0, 0),
        (".symtab", SYMTAB, 0, symbols, 8, 4, SYMBOL_BYTES),
        (".strtab", STRTAB, 0, names, 1, 0, 0),
    ]
    body, table = b"", bytes(SECTION_BYTES)
    for name, kind, flags, content, align, link, entry in parts:
        body += bytes(-len(body) % 8)
        at = HEADER_BYTES + len(body)
        # struct Elf64_Shdr; of .symtab info is the number of local symbols
        name_at = names.index(b"\0" + name.encode() + b"\0") + 1
        info = 1 if kind == SYMTAB else 0
        table += struct.pack(
            "<IIQQQQIIQQ", name_at, kind, flags, 0, at, len(content), link, info, align, entry
        )
        body += content
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", ident, ET_REL, EM_BPF, 1, 0, 0, HEADER_BYTES + len(body), 0, HEADER_BYTES, 0, 0,
        SECTION_BYTES, len(parts) + 1, len(parts),
    )  # fmt: skip
    return header + body + table
