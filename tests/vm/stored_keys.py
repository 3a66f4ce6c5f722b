"""Run an experiment over encrypted links, and look for their keys in everything that it writes and sends, in a lab VM
(encrypted_links.py)."""

from __future__ import annotations

import base64
import gzip
import secrets
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import msgspec

from labkit.measure.agent import main as agent
from labkit.measure.topologies.network import encryption

made: list[bytes] = []


def recorded(length_bytes: int) -> bytes:
    made.append(secrets.token_bytes(length_bytes))
    return made[-1]


def forms(key: bytes) -> list[bytes]:
    """Return how a file may hold a key: as it is, in hexadecimal, in base64. The first and the last bytes are left out,
    in which the kernel changes a few bits of WireGuard's."""
    inner, printed = key[3:-2], base64.b64encode(key)
    return [inner, inner.hex().encode(), printed[4 : 4 * (len(key) // 3)]]


def places(folder: Path) -> list[str]:
    """Return the files that hold a key, also a compressed one."""
    result, looked_for = [], [form for key in made for form in forms(key)]
    for path in (path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        result += [path.name] if any(form in content for form in looked_for) else []
    return result


def report(words: Sequence[str]) -> dict[str, Any]:
    """Return how many keys and files were made, what was measured, and which files hold a key: of the experiment, and
    after one was planted. From then on, events and keys of this process are recorded."""
    sent: list[dict[str, Any]] = []
    agent.write_event = sent.append
    encryption.secrets = SimpleNamespace(token_bytes=recorded)  # type: ignore[assignment]
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("rows", "artefacts"):
            (folder / part).mkdir()
        parameters = dict(word.split("=", 1) for word in words)
        request = {"experiment": "datapaths", "parameters": parameters, "folder": name, "seed": 1}
        events = [*agent.experiment(request)]
        (folder / "events.json").write_bytes(msgspec.json.encode([*sent, *events]))
        files, found = sum(path.is_file() for path in folder.rglob("*")), places(folder)
        (folder / "planted.gz").write_bytes(gzip.compress(b"key " + base64.b64encode(made[-1])))
        planted = places(folder)
    rows = [row for event in events for row in event.get("rows", ())]
    # On a slow machine, flows may not overlap long enough to count.
    measured = sorted({row["topology"] for row in rows if row["status"] in ("ok", "invalid")})
    return {"keys": len(made), "files": files, "measured": measured, "found": found, "planted": planted}
