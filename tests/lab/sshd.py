"""Run a real sshd in the network namespace of a sandbox, with its own keys and home folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandbox import LABKIT, MARK, Sandbox, sandbox, until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
# sshd needs its own folder in /run (sshd(8)). Here it is in a mount namespace that nobody else sees.
START = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'

SERVER = """
ListenAddress 127.0.0.1:22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
LogLevel VERBOSE
SetEnv {mark} HOME={home} PATH={path}
"""
CLIENT = """
Host lab gone denied
    HostKeyAlias known
Host gone
    Port 23
Host denied
    PubkeyAuthentication no
Host lab gone stranger denied
    HostName 127.0.0.1
    User root
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known
Host lab
    LocalForward 127.0.0.1:2222 127.0.0.1:22
    ExitOnForwardFailure yes
"""

REAL = shutil.which("python3")
# Holds the lock of a machine until it is killed.
HOLD = """
import time
from labkit.measure.hosts import local
with local.measuring_lock(print):
    print("held", flush=True)
    time.sleep(600)
"""


class Lab(Sandbox):
    """A sandbox with an sshd.

    `lab` is its host name. `there` is the folder with its home and with the programs that come first in its PATH.
    """

    def __init__(self, made: Sandbox) -> None:
        self.__dict__ = made.__dict__
        self.there = self.folder / "there"
        self.home, self.bin = self.there / "home", self.there / "bin"
        self.cache = self.home / ".cache" / "labkit"
        for folder in (self.home, self.bin, self.folder / "client"):
            folder.mkdir(parents=True)
        for key in ("host", "user"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.there / key)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        known = (self.there / "host.pub").read_text()
        (self.there / "known").write_text(f"known {known}")
        (self.there / "client").write_text(CLIENT.format(folder=self.there))
        ssh = self.folder / "client" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.there}/client "$@"\n')
        ssh.chmod(0o755)
        path = self.environment["PATH"]
        self.environment["PATH"] = f"{ssh.parent}:{path}"
        words = {"mark": f"{MARK}={self.mark}", "home": self.home, "path": f"{self.bin}:{path}"}
        (self.there / "server").write_text(SERVER.format(folder=self.there, **words))
        self._start()

    def _start(self) -> None:
        assert SSHD is not None
        argv = [SSHD, "-D", "-E", str(self.there / "log"), "-f", str(self.there / "server")]
        self.sshd = self.start("unshare", "--mount", "sh", "-c", START, "sh", *argv)
        log = self.there / "log"
        if not until(lambda: log.exists() and "Server listening" in log.read_text(), 20):
            self.sshd.kill()
            raise AssertionError(self.sshd.communicate())

    def says(self, name: str, text: str) -> None:
        """Replace the program `name` on the remote side by this shell script."""
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def over_there(self) -> dict[int, list[str]]:
        """Return the processes that run on the remote side, without the listening sshd and without labkit and ssh on
        this side."""
        return {
            pid: words
            for pid, words in self.processes().items()
            if pid != self.sshd.pid and words and words[1:2] != ["-F"] and words[: len(LABKIT)] != LABKIT
        }

    def sessions(self) -> list[int]:
        """Return the sshd processes that each serve a connection."""
        pid = self.sshd.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def digests(self) -> dict[str, list[str]]:
        """Return the folders that labkit copied to the remote side, each with the packages in it."""
        return {
            folder.name: sorted(at.name for at in folder.iterdir() if "." not in at.name)
            for folder in self.cache.iterdir()
            if folder.name != "run"
        }


@contextmanager
def lab(folder: Path, nics: Sequence[str] = ()) -> Iterator[Lab]:
    """Provide a sandbox with an sshd, as root."""
    with sandbox(folder, user=False, nics=nics) as made:
        result = Lab(made)
        try:
            yield result
        finally:
            result.sshd.kill()
            result.sshd.communicate()
