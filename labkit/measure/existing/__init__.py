"""Networks that are already there: their ends, the path between these, and the same path as an arm."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.measure.existing.endpoints import ExistingEndpoint, resolve
from labkit.measure.existing.path import Path, path_between


@contextmanager
def between(client: str, server: str, family: int | None = None) -> Iterator[Path]:
    """Find two ends by their names, and the path between them. Raises the errors of `resolve` and `path_between`."""
    with ExitStack() as stack:
        near = resolve(client)
        stack.callback(near.close)
        far = resolve(server)
        stack.callback(far.close)
        path = path_between(near, far, family)
        stack.callback(path.close)
        yield path


__all__ = ["ExistingEndpoint", "Path", "between", "path_between", "resolve"]
