"""The record of the priority, policy and file of the programs in a namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from labkit.system.machine import load_programs


def test_settings_of_a_running_program() -> None:
    """Somebody changes the priority of a program that already runs."""
    code = "open('/proc/self/comm', 'w').write('a-niced-program'); print(flush=True); import time; time.sleep(30)"
    command = [sys.executable, "-P", "-c", code]
    here = {os.stat("/proc/self/ns/net").st_ino: "client0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            program.stdout.readline()
            before = load_programs.program_settings(here)["client0"]
            os.setpriority(os.PRIO_PROCESS, program.pid, 7)
            os.sched_setscheduler(program.pid, os.SCHED_BATCH, os.sched_param(0))
            after = load_programs.program_settings(here)["client0"]
        finally:
            program.kill()
    name = "a-niced-program"
    assert {key: value for key, value in after.items() if key.startswith(name) and value != before[key]} == {
        f"{name} nice": "7",
        f"{name} scheduling policy": "batch",
    }
    assert after[f"{name} Seccomp"].isdigit()
    assert after[f"{name} executable"].startswith(f"{Path(sys.executable).resolve()} digest ")
    assert load_programs.program_settings({1: "elsewhere"}) == {}
