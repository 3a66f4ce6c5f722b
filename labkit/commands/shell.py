"""`labkit shell`: open a shell inside a topology."""

import argparse
import os
import tempfile
from contextlib import ExitStack

import msgspec

from labkit.commands import arguments
from labkit.common.errors import BadInput
from labkit.measure.hosts import local
from labkit.runner import run as running
from labkit.system import process

NOTES = """\
The topology is removed when the shell ends, and the exit code is that of the shell. A notebook has
the same: `from labkit import live; net = live.build("veth_bridge")`.

    labkit shell veth_bridge pairs=2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_topology(parser)


def run(given: argparse.Namespace) -> int:
    request = running.one_topology(given.topology, arguments.name_value_pairs(given.parameters))
    if (where := request["parameters"]["where"]) != "here":
        way = "leave where out, or name ends of this machine"
        raise BadInput(f"where={where} is not possible: `labkit shell` runs on this kernel only; {way}")
    with ExitStack() as stack:
        more, fds = local.handed(request, stack)
        if local.privileged():
            fds.append(os.open("/proc/self/ns/net", os.O_RDONLY))
            more["machine_netns"] = fds[-1]
        file = stack.enter_context(tempfile.TemporaryFile())  # an argument has at most 128 KiB (execve(2))
        file.write(msgspec.json.encode(request | more))
        file.seek(0)
        fds.append(file.fileno())
        argv = [*local.prefix(), *process.python("-m", "labkit.measure.agent.main", str(fds[-1]))]
        return process.interactive(argv, pass_fds=fds)
