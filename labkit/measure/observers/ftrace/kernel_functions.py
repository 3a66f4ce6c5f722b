"""Names of kernel functions: which can be traced, where they are, and which are near to one that is not there."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from labkit.common.errors import BadInput, Unsupported
from labkit.measure.observers.ftrace import session
from labkit.measure.observers.perf import control

NAME = r"[A-Za-z_][A-Za-z0-9_.]{0,126}"  # of a kernel function; no glob, no command of tracefs's
# What a compiler calls its copy of a function of which arguments are known; it does all that the function does.
_COPY = re.compile(r"\.(?:constprop|isra)\b[.\d\w]*$")
FARTHEST = 64  # bytes from a function's address to the place where it is traced
KALLSYMS = Path("/proc/kallsyms")


def check_names(names: Sequence[str], parameter: str = "functions") -> None:
    """Raise BadInput for what cannot be the name of a function."""
    for name in names:
        if not re.fullmatch(NAME, name):
            raise BadInput(f"{parameter}: {name!r} is no name of a kernel function; there are no patterns")


def resolved(names: Sequence[str]) -> dict[str, list[str]]:
    """Each name to what it is called where this kernel traces it now: itself, or the copies that the compiler made of
    it (`.constprop.0`). Raises BadInput, in one sentence with near names, for those that it cannot trace."""
    there = traceable()
    result = resolve(names, there)
    missing = [name for name in names if not result[name]]
    if missing:
        known = set(addresses(tuple(missing)).values())
        lists = f"{session.place()}/available_filter_functions"
        raise BadInput(refusal("this kernel", missing, there, lists, known))
    return result


def traceable() -> list[str]:
    """The functions that this kernel can trace; of one without a function tracer, which has probes all the same, those
    that it names. Raises Unsupported where it names none."""
    try:
        return session.functions()
    except Unsupported:
        result = re.findall(r"^[0-9a-f]+ [tT] (\S+)", KALLSYMS.read_text(), re.MULTILINE)
        if not result:
            raise
        return result


def resolve(names: Sequence[str], there: Iterable[str]) -> dict[str, list[str]]:
    """Each name to those of `there` that are it."""
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
    """Why `kernel` cannot trace what is missing of `there`, which `lists` has; `known` is what it has."""
    words = []
    for name in missing:
        if name in known:
            words.append(f"{name} (it is there, and is not traceable)")
        else:
            close = near(name, there)
            words.append(f"{name} (did you mean {' or '.join(close)}?)" if close else name)
    return (
        f"{kernel} cannot trace {', '.join(words)}; {lists} lists what it can,"
        " functions of a module only once it is loaded"
    )


def near(name: str, there: Iterable[str]) -> list[str]:
    """Up to three names that are like it; of tens of thousands only those that begin alike or are as long are tried."""
    tried = {
        one
        for one in there
        if abs(len(one) - len(name)) <= 4 and (one[:2] == name[:2] or one[-3:] == name[-3:])
    }
    return difflib.get_close_matches(name, sorted(tried), 3, 0.75)


@functools.cache
def addresses(names: tuple[str, ...]) -> Mapping[int, str]:
    """Addresses of functions to their names. Raises Unsupported where the kernel shows none."""
    wanted = "|".join(re.escape(name) for name in names)
    form = re.compile(rf"^([0-9a-f]+) \w ({wanted})(?:\t.*)?$".encode(), re.MULTILINE)
    result = {int(address, 16): name.decode() for address, name in form.findall(KALLSYMS.read_bytes())}
    if 0 in result:
        raise Unsupported(
            f"this kernel shows no addresses of its functions, so times could name none: {control.SHOW_SYMBOLS}"
        )
    return result


def named(address: int, known: Mapping[int, str]) -> str | None:
    """The function that is traced at an address, which may be behind its first instructions (endbr64, a nop)."""
    begin = max((begin for begin in known if 0 <= address - begin < FARTHEST), default=None)
    return None if begin is None else known[begin]
