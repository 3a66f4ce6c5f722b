"""Names of what is already there: `container:web`, `netns:blue`, `pid:4711`, `host`; and of a network between two.

On another machine, that machine comes first: `ssh:lab/container:web`.
"""

import re

from labkit.common.errors import BadInput, did_you_mean

HOST, PREFIX, SSH = "host", "existing:", "ssh"
# What engines and ip(8) accept, without what a shell, a list of parameters or an option would read differently.
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
FORMS = {"container": NAME, "netns": NAME, "pid": r"[1-9]\d{0,9}"}
EXAMPLE = "container:NAME, netns:NAME, pid:NUMBER or host"


def is_end(text: str) -> bool:
    """Return whether a text is meant as the name of something existing, whatever follows the kind."""
    return text == HOST or (":" in text and text.partition(":")[0] in (*FORMS, SSH))


def parse(text: str) -> tuple[str, str]:
    """Return kind and name, for example `container` and `web`. Raises BadInput for anything else."""
    kind, _, name = text.partition(":")
    if text == HOST:
        return HOST, ""
    if kind not in FORMS:
        near = did_you_mean(kind, [*FORMS, HOST])
        raise BadInput(f"{text[:100]!r} names nothing that exists{near}: write {EXAMPLE}")
    if not re.fullmatch(FORMS[kind], name):
        what = "letters, digits, dots, - and _, and begins with one of the first two"
        what = "a number" if kind == "pid" else what
        raise BadInput(f"{text[:100]!r} is not a valid name: what follows {kind}: is {what}")
    return kind, name


def machines(client: str, server: str) -> list[tuple[str, str]]:
    """Return the machine of each of two ends (`here`, or `ssh:NAME`), and its name there.

    Raises BadInput for an invalid name, and for one end twice.
    """
    placed = [_placed(each) for each in (client, server)]
    for _where, name in placed:
        parse(name)
    if placed[0] == placed[1]:
        raise BadInput(f"{client} is named twice: name two different ends")
    return placed


def _placed(text: str) -> tuple[str, str]:
    kind, _, _name = text.partition(":")
    if kind != SSH:
        return "here", text
    where, slash, name = text.partition("/")
    if not slash:
        raise BadInput(f"{text[:100]!r} names a machine only: write for example {text[:100]}/container:web")
    return where, name


def network(client: str, server: str) -> str:
    """Return the name of the network between two ends, as a topology. Raises BadInput."""
    machines(client, server)
    return f"{PREFIX}{client}+{server}"


def is_network(topology: str) -> bool:
    """Return whether a topology's name is that of an existing network."""
    return topology.startswith(PREFIX)


def ends(topology: str) -> tuple[str, str]:
    """Return the client and the server of an existing network's name. Raises BadInput."""
    client, plus, server = topology.removeprefix(PREFIX).partition("+")
    if not plus:
        example = f"{PREFIX}container:web+container:cli"
        raise BadInput(f"{topology[:200]!r} is not a network between two ends: write for example {example}")
    machines(client, server)
    return client, server


def decided(topology: str) -> dict[str, str]:
    """Return the parameters that the machines of an existing network's ends decide; none if they name no machine."""
    (clients_host, _client), (servers_host, _server) = machines(*ends(topology))
    if clients_host != servers_host:
        return {"where": clients_host, "nodes": "two", "peer": servers_host}
    return {} if clients_host == "here" else {"where": clients_host}


def is_apart(topology: str) -> bool:
    """Return whether a topology is an existing network whose ends are on two machines."""
    return is_network(topology) and "peer" in decided(topology)
