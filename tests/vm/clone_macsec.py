"""Clone two ends that MACsec joins, and build the copy, in a lab VM (encrypted_links.py)."""

from __future__ import annotations

import io
import json
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from labkit import cli
from labkit.measure import topologies
from labkit.measure.traffic import ping
from labkit.runner import yaml_files

SETTINGS = ("encrypt on", "cipher gcm-aes-256 replay on window 64")  # in the words of ip-macsec(8)
ENDS = ("netns:client", "netns:server")
MAC = "02:00:00:00:00:0{}"
KEY_BYTES = {True: 32, False: 16}  # of GCM-AES-256, or GCM-AES-128


def run(*words: str) -> str:
    return subprocess.check_output(words, text=True)


def labkit(*words: str) -> str:
    """Return what a command of labkit prints."""
    with redirect_stdout(io.StringIO()) as printed:
        assert cli.main([*words]) == 0, words
    return printed.getvalue()


def make(settings: str) -> None:
    """Make both ends: a cable without addresses, and MACsec upon it."""
    for name in ("client", "server"):
        run("ip", "netns", "add", name)
    cable = "ip -n client link add eth0 address {} type veth peer name eth0 netns server address {}"
    run(*cable.format(MAC.format(1), MAC.format(2)).split())
    for name, own, other in (("client", 1, 2), ("server", 2, 1)):
        length_bytes = KEY_BYTES["gcm-aes-256" in settings]
        keys = {of: f"key 0{of} {f'{of}c' * length_bytes}" for of in (own, other)}
        for line in (
            "link set eth0 up",
            f"link add link eth0 name macsec0 type macsec {settings}",
            f"macsec add macsec0 tx sa 0 pn 1 on {keys[own]}",
            f"macsec add macsec0 rx port 1 address {MAC.format(other)}",
            f"macsec add macsec0 rx port 1 address {MAC.format(other)} sa 0 pn 1 on {keys[other]}",
            f"address add 10.1.0.{own}/24 dev macsec0",
            "link set macsec0 up",
        ):
            run("ip", "-n", name, *line.split())


def shown(inside: Callable[..., str]) -> dict[str, Any]:
    [one] = json.loads(inside("ip", "-d", "-j", "link", "show", "dev", "macsec0"))
    return {name: one[name] for name in ("mtu", "address")} | one["linkinfo"]["info_data"]


def report(settings: str) -> dict[str, Any]:
    """Return what `labkit clone` and `labkit draw` print, what `ip` prints of the MACsec interfaces of the original and
    of the copy, and why the copy's ends do not reach each other, if so."""
    try:
        make(settings)
        result: dict[str, Any] = {
            "clone": labkit("clone", *ENDS),
            "drawn": json.loads(labkit("draw", *ENDS, "--json")),
        }
        result["original"] = [
            shown(lambda *words, name=name: run("ip", "netns", "exec", name, *words))
            for name in ("client", "server")
        ]
    finally:
        for name in ("client", "server"):
            subprocess.run(["ip", "netns", "delete", name], check=False)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(result["clone"])
        file.flush()
        network = yaml_files.network(Path(file.name))
    with topologies.build_network(network) as built:
        result["copy"] = [
            shown(lambda *words, space=space: space.run(*words).stdout) for space in built.namespaces
        ]
        result["silent"] = ping.reachable(built.pairs, result["copy"][0]["mtu"], 4, patience_s=3)
    return result
