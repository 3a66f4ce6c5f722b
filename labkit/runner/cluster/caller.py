"""Distribute points to Dask workers for --dask, one at a time to each, and receive their folders.

This process schedules the points, not Dask's scheduler. So it knows which point runs where, workers that appear later
get points, and the point of a lost worker is known.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from distributed import CancelledError, Client, Future, KilledWorker

import labkit
from labkit.common import errors, safe_files, schema, units
from labkit.common.errors import BadInput, Failed
from labkit.runner import sweep as sweeps
from labkit.runner.cluster import folders, worker
from labkit.runner.cluster.request import Request, source_digest
from labkit.runner.progress import Bar
from labkit.runner.sweep import Sweep, SweepPoint

CONNECT_S = 10.0
ANSWER_S = 15.0  # the scheduler may be silent for this long
WORKER_S = 60.0  # there may be no worker for this long
LOOK_S = 0.5
ATTEMPTS = 3  # workers that may be lost while they measure one point
KEPT = "finished points are kept; repeat the same command to continue"
Workers = dict[str, dict[str, Any]]


def measure(address: str, sweep: Sweep, points: list[SweepPoint], bar: Bar) -> None:
    """Measure points on the workers of the Dask cluster at `address`, and put their folders into the sweep's.

    Raises BadInput when no worker can serve, the error of a failed point, and Failed when the scheduler does not answer
    or disappears, or when one point has lost too many workers.
    """
    # What the library logs is part of labkit's own messages.
    for name in (
        "distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado.application",
    ):  # fmt: skip
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(_measure(address, sweep, points, bar))
    else:  # the loop of a notebook's kernel, which runs this call and cannot run another beside it
        raise BadInput(
            "a notebook cannot lead a sweep on a cluster: give the labkit sweep command in a terminal"
        )


async def _measure(address: str, sweep: Sweep, points: list[SweepPoint], bar: Bar) -> None:
    safe_files.remove_leftovers(sweep.folder, folders.PLACING)  # of a killed caller
    async with _connect(address) as client:
        handing = _Handing(client, address, sweep, points, bar)
        try:
            await handing.all()
        finally:
            await handing.let_go()


@asynccontextmanager
async def _connect(address: str) -> AsyncIterator[Client]:
    client = Client(address, asynchronous=True, timeout=CONNECT_S, set_as_default=False)
    try:
        try:
            # The library's own deadline does not cover a server that accepts connections but stays silent.
            await asyncio.wait_for(client, CONNECT_S)
        except (OSError, ValueError, TimeoutError) as error:
            raise Failed(
                f"no Dask scheduler answers at {address} within {CONNECT_S:g} s: start one with `dask scheduler`, and"
                f" give the address that it prints ({' '.join(str(error).split())[:200] or 'silence'})"
            ) from None
        yield client
    finally:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(client.close(), ANSWER_S)


@dataclass
class _Running:
    """A point on a worker."""

    point: SweepPoint
    worker: str
    future: Future[dict[str, Any]]
    answer: asyncio.Future[dict[str, Any]]
    event: dict[str, Any] = field(default_factory=dict)

    def what(self) -> str:
        """Return what the worker is doing, or why it waits."""
        lines = self.event.get("text")
        return f"{self.point.name}, {lines}" if lines else str(self.event.get("what", self.point.name))

    def give_up(self) -> None:
        """Cancel the point. A living worker notices this and ends the measurement."""
        self.answer.cancel()
        self.future.release()


class _Handing:
    """The state of one distribution of points."""

    def __init__(
        self, client: Client, address: str, sweep: Sweep, points: list[SweepPoint], bar: Bar
    ) -> None:
        self.client, self.address, self.sweep, self.bar = client, address, sweep, bar
        self.text = safe_files.read_regular(sweep.notebook).decode()
        self.waiting = deque(points)
        self.running: dict[str, _Running] = {}  # by worker
        self.refused: dict[str, str] = {}  # worker: why it gets no points
        self.lost: dict[str, list[str]] = {}  # point: the workers that were lost with it
        self.count, self.done_s = len(points), 0.0
        self.total_s = sum(map(sweep.planned_s, points))
        self.begun = self.had_worker = time.monotonic()
        self.topic = f"labkit-{secrets.token_hex(8)}"
        client.subscribe_topic(self.topic, self._see)

    async def all(self) -> None:
        """Run until every point is done."""
        while self.waiting or self.running:
            workers = await self._workers()
            for running in [one for one in self.running.values() if one.worker not in workers]:
                self._take_back(running)
            self._hand_out(workers)
            self._show()
            answers = [one.answer for one in self.running.values()]
            if answers:
                await asyncio.wait(answers, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(LOOK_S)
            self._collect()

    async def let_go(self) -> None:
        """Keep the results that have arrived, and cancel the rest, so that its workers end it."""
        self.bar.stop()
        finished = [one.answer for one in self.running.values() if one.future.done()]
        if finished:
            await asyncio.wait(finished, timeout=ANSWER_S)
        with contextlib.suppress(errors.LabkitError):  # the first error is already being reported
            self._collect()
        for running in self.running.values():
            running.give_up()
        self.running.clear()

    async def _workers(self) -> Workers:
        try:
            if self.client.status == "running" and self.client.scheduler is not None:
                known = self.client.scheduler.identity(n_workers=-1)
                result: Workers = (await asyncio.wait_for(known, ANSWER_S))["workers"]
                return result
        except (OSError, TimeoutError):
            pass
        raise self._worker_lost()

    def _worker_lost(self) -> Failed:
        return Failed(f"the Dask scheduler at {self.address} went away; {KEPT} when a scheduler runs again")

    def _hand_out(self, workers: Workers) -> None:
        for address, known in workers.items():
            if known["resources"].get("labkit", 0) < 1:
                self._refuse(
                    address,
                    "it lacks the resource labkit=1, which limits it to one measurement at a time: start it with"
                    " --resources labkit=1",
                )
        fit = [address for address in workers if address not in self.refused]
        if fit:
            self.had_worker = time.monotonic()
        elif not self.running:
            self._check_workers(workers)
        for address in fit:
            if self.waiting and address not in self.running:
                self._hand(self.waiting.popleft(), address)

    def _check_workers(self, workers: Workers) -> None:
        """Raise an error if no worker can serve: at once if that will not change, otherwise after WORKER_S."""
        how = f'start one with: dask worker {self.address} --resources "labkit=1" --nthreads 2'
        if workers and not self.lost:
            address = next(iter(workers))
            raise BadInput(
                f"no worker of the Dask cluster can measure: {address}: {self.refused[address]}; {how}"
            )
        if time.monotonic() - self.had_worker > WORKER_S:
            raise Failed(f"the Dask cluster at {self.address} has no worker that can measure; {KEPT}; {how}")

    def _refuse(self, address: str, why: str) -> None:
        if address not in self.refused:
            self.refused[address] = why
            self.bar.say(f"the worker {address} gets no point: {why}")

    def _hand(self, point: SweepPoint, address: str) -> None:
        request = Request(
            labkit.__version__,
            source_digest(),
            self.sweep.notebook.stem,
            self.text,
            point.name,
            point.parameters,
            os.environ.get(schema.PERCENTILE),
        )
        future = self.client.submit(
            worker.measure_point, msgspec.json.encode(request), point.name, self.topic,
            key=f"labkit-{point.name}-{secrets.token_hex(8)}", pure=False,
            workers=[address], allow_other_workers=False, resources={"labkit": 1}, retries=0,
        )  # fmt: skip
        self.running[address] = _Running(point, address, future, asyncio.ensure_future(future))
        self.bar.say(f"point {point.name} is measured by {address}")

    def _see(self, event: tuple[float, Any]) -> None:
        name, seen = event[1]
        for running in self.running.values():
            if running.point.name == name:
                running.event = seen

    def _show(self) -> None:
        there = [f"{one.what()} on {one.worker.partition('://')[2]}" for one in self.running.values()]
        left = len(self.waiting) + len(self.running)
        shown = units.shortened(there, 3, "; ") or "waiting for a worker"
        planned_s = self.sweep.planned_s
        done_s = sum(min(one.event.get("done_s", 0.0), planned_s(one.point)) for one in self.running.values())
        self.bar.see(
            {
                "event": "progress",
                "what": f"{self.count - left} of {self.count} points; {shown}",
                "done_s": self.done_s + done_s,
                "total_s": self.total_s,
                "elapsed_s": time.monotonic() - self.begun,
            }
        )

    def _collect(self) -> None:
        """Process every answer that has arrived, then raise the first failure."""
        failures = []
        for running in [one for one in self.running.values() if one.answer.done()]:
            try:
                self._take(running)
            except errors.LabkitError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _take(self, running: _Running) -> None:
        error = CancelledError() if running.answer.cancelled() else running.answer.exception()
        # not cancelled by us: the connection broke, whether or not Dask cancelled the point
        if isinstance(error, CancelledError):
            raise self._worker_lost()
        if isinstance(error, KilledWorker):
            self._take_back(running)
            return
        del self.running[running.worker]
        if isinstance(error, ImportError):
            answer = {"kind": "refused", "text": f"its labkit cannot measure points for others ({error})"}
        elif error is not None:
            raise Failed(f"point {running.point.name}, on {running.worker}: {type(error).__name__}: {error}")
        else:
            answer = running.answer.result()
        self._answered(running, answer)

    def _answered(self, running: _Running, answer: dict[str, Any]) -> None:
        folder = self.sweep.folder / running.point.name
        if answer["kind"] == "refused":
            self.waiting.appendleft(running.point)
            self._refuse(running.worker, answer["text"])
        elif answer["kind"] == "done":
            folders.unpack(answer["packed"], folder, answer["folder"])
            self.done_s += self.sweep.planned_s(running.point)
            done = self.count - len(self.waiting) - len(self.running)
            self.bar.say(f"point {running.point.name} is back from {running.worker} ({done} of {self.count})")
        else:
            if "packed" in answer:
                folders.unpack_file(answer["packed"], "failed.ipynb", folder, answer["folder"])
            text = answer["text"].replace(answer.get("folder") or "\0", str(folder))
            if answer["kind"] == "Failed" and sweeps.where(running.point) != "here":
                sweeps.record_unmeasured(
                    self.sweep, running.point, f"{text}; that was on {running.worker}", self.bar
                )
                return
            raise errors.error_by_name(answer["kind"], f"{text}; that was on {running.worker}")

    def _take_back(self, running: _Running) -> None:
        """Queue the point of a lost worker again."""
        del self.running[running.worker]
        running.give_up()
        lost = self.lost.setdefault(running.point.name, [])
        lost.append(running.worker)
        if len(lost) == ATTEMPTS:
            raise Failed(
                f"point {running.point.name}: {ATTEMPTS} workers were lost while they measured it ({', '.join(lost)}):"
                f" see their own output for why; {KEPT}"
            )
        self.waiting.appendleft(running.point)
        self.bar.say(f"the worker {running.worker} is lost; its point {running.point.name} is measured again")
