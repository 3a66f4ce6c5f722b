"""The machine and its kernel: provenance, programs, privilege, interfaces, CPU time.

All of it is read as the calling process sees it: sysctls, for one, are those of its network namespace.
"""

from labkit.common.privileges import is_root
from labkit.system.machine.background import Background
from labkit.system.machine.cpu_quota import Throttling, quota_cpus, with_throttling
from labkit.system.machine.cpu_time import (
    CpuTimes,
    busy_share,
    cpu_s,
    cpu_times,
    cpu_times_of,
    descendants,
    stolen,
    thread_times,
)
from labkit.system.machine.host_load import HostLoad, with_host_load
from labkit.system.machine.interfaces import offloads, qdisc, token_bucket
from labkit.system.machine.programs import (
    asking_versions,
    kill_descendants,
    pids_by_namespace,
    program,
    require_program,
    versions,
)
from labkit.system.machine.provenance import (
    describe,
    details,
    digest,
    git_revision,
    kernel_config,
    sysctls,
)
from labkit.system.machine.settings import bpf_settings, namespace_files, namespace_settings

__all__ = [
    "Background", "CpuTimes", "HostLoad", "Throttling", "asking_versions", "bpf_settings",
    "busy_share", "cpu_s", "cpu_times", "cpu_times_of", "descendants", "describe", "details", "digest",
    "git_revision", "is_root", "kernel_config", "kill_descendants", "namespace_files", "namespace_settings", "offloads",
    "pids_by_namespace", "program", "qdisc", "quota_cpus", "require_program", "stolen", "sysctls", "thread_times",
    "token_bucket", "versions", "with_host_load", "with_throttling",
]  # fmt: skip
