"""Names of kernel functions: which can be traced, their addresses, and similar names for a misspelt one."""

import functools
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from labkit.common.errors import BadInput, Unsupported, did_you_mean
from labkit.measure.observers.ftrace import session
from labkit.measure.observers.perf import control

# Suffix of a compiler's specialised copy of a function, which does the same work.
_COPY = re.compile(r"\.(?:constprop|isra)\b[.\d\w]*$")
FARTHEST = 64  # maximum bytes from a function's address to the traced instruction
KALLSYMS = Path("/proc/kallsyms")


def resolved(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the traceable names of each function: itself, or the compiler's copies of it (`.constprop.0`).

    Raises BadInput, with similar names, for functions that this kernel cannot trace.
    """
    there = traceable()
    result = resolve(names, there)
    missing = [name for name in names if not result[name]]
    if missing:
        known = set(addresses(tuple(missing)).values())
        lists = f"{session.place()}/available_filter_functions"
        raise BadInput(refusal("this kernel", missing, there, lists, known))
    return result


def traceable() -> list[str]:
    """Return the functions that this kernel can trace; without a function tracer, those in /proc/kallsyms (for
    probes).

    Raises Unsupported if there are none.
    """
    try:
        return session.functions()
    except Unsupported:
        result = re.findall(r"^[0-9a-f]+ [tT] (\S+)", KALLSYMS.read_text(), re.MULTILINE)
        if not result:
            raise
        return result


def resolve(names: Sequence[str], there: Iterable[str]) -> dict[str, list[str]]:
    """Return for each name the entries of `there` that are this function."""
    result: dict[str, list[str]] = {name: [] for name in names}
    copies: dict[str, list[str]] = {name: [] for name in names}
    for one in there:
        if one in result:
            result[one] = [one]
        elif "." in one and (whole := _COPY.sub("", one)) in copies:
            copies[whole].append(one)
    return {name: result[name] or list(dict.fromkeys(copies[name])) for name in names}


def refusal(
    kernel: str, missing: Iterable[str], there: Sequence[str], lists: str, known: Container[str] = ()
) -> str:
    """Return the sentence why `kernel` cannot trace `missing`.

    `there` are the traceable functions, which the file `lists` lists; `known` are functions that the kernel has.
    """
    words = []
    for name in missing:
        if name in known:
            words.append(f"{name} (it exists but is not traceable)")
        else:
            # Of 60,000 functions, those with a similar length, and the same beginning or end, are compared.
            similar = [
                one
                for one in there
                if abs(len(one) - len(name)) <= 4 and (one[:2] == name[:2] or one[-3:] == name[-3:])
            ]
            words.append(f"{name}{did_you_mean(name, similar, 3)}")
    return (
        f"{kernel} cannot trace {', '.join(words)}; {lists} lists the traceable functions,"
        " those of a module only while it is loaded"
    )


@functools.cache
def addresses(names: tuple[str, ...]) -> Mapping[int, str]:
    """Return functions by address. Raises Unsupported if the kernel hides its addresses."""
    wanted = "|".join(re.escape(name) for name in names)
    form = re.compile(rf"^([0-9a-f]+) \w ({wanted})(?:\t.*)?$".encode(), re.MULTILINE)
    result = {int(address, 16): name.decode() for address, name in form.findall(KALLSYMS.read_bytes())}
    if 0 in result:
        raise Unsupported(
            f"this kernel hides its functions' addresses, so times cannot be assigned: {control.SHOW_SYMBOLS}"
        )
    return result


def function_at(address: int, known: Mapping[int, str]) -> str | None:
    """Return the function that is traced at an address, which may follow its first instructions (endbr64, a nop)."""
    begin = max((begin for begin in known if 0 <= address - begin < FARTHEST), default=None)
    return None if begin is None else known[begin]
