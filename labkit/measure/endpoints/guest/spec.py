"""The description of a guest, a larger shared guest, and a guest's NIC."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.common.errors import BadInput
from labkit.common.limits import Limit, OneOf, Within
from labkit.system.qemu import vm_spec

FORM = (
    "KERNEL[,cpus=N][,queues=N][,offloads=on|off][,vhost=auto|on|off][,memory_mib=N][,profile=traffic|tracing]\
[,append=WORD+WORD][,modules=NAME+NAME][,programs=NAME+NAME][,boot_s=N]"
)
CPUS, MEMORY_MIB = 64, 262144  # upper limits of a guest


@dataclass(frozen=True)
class GuestSpec:
    """The parsed description of a guest.

    `queues`: queue pairs of its NIC. `offloads`: whether the other side may compute checksums and segment. `vhost`:
    auto means on if KVM and vhost-net are available. `programs` are packed in addition to those of the load, and the
    Python files `scripts` with the modules that they need.
    """

    machine: vm_spec.Shape
    queues: int = 1
    offloads: bool = True
    vhost: str = "auto"
    programs: tuple[str, ...] = ()
    boot_s: int = 120
    scripts: tuple[str, ...] = ()


def parse(text: str) -> GuestSpec:
    """Parse the description of a guest. Raises BadInput, with one sentence, if it is invalid."""
    own: dict[str, Limit] = {
        "queues": Within(1, 64),
        "offloads": OneOf(("on", "off")),
        "vhost": OneOf(("auto", "on", "off")),
        "programs": vm_spec.Words(r"[A-Za-z0-9_.-]+", "NAME+NAME"),
        "boot_s": Within(1, 3600),
    }
    fields = vm_spec.FIELDS | {"cpus": Within(1, CPUS), "memory_mib": Within(128, MEMORY_MIB)} | own
    kernel, given = vm_spec.read(f"guest={text}", "a guest", text, fields, FORM)
    more = {name: given.pop(name) for name in own if name in given}
    if "offloads" in more:
        more["offloads"] = more["offloads"] == "on"
    made = vm_spec.Shape(kernel, **{"cpus": 1, "memory_mib": 384, **given})  # type: ignore[arg-type]
    spec = GuestSpec(made, **more)  # type: ignore[arg-type]
    if spec.queues > made.cpus:
        raise BadInput(f"guest={text}: a guest needs a CPU for each queue: choose cpus={spec.queues} or more")
    return spec


@dataclass(frozen=True)
class GuestAdditions:
    """What guests get in addition: CPUs and memory multiplied by `times`, more modules, programs and Python files."""

    times: int = 1
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()

    def of(self, spec: GuestSpec) -> GuestSpec:
        """Return the guest with them. Raises BadInput if it is too large."""
        one = spec.machine
        cpus, memory_mib = self.times * one.cpus, self.times * one.memory_mib
        if cpus > CPUS or memory_mib > MEMORY_MIB:
            text = f"one guest for {self.times} endpoints needs cpus={cpus},memory_mib={memory_mib}"
            raise BadInput(f"{text}; the limits are {CPUS} and {MEMORY_MIB}: choose fewer pairs")
        made = replace(one, cpus=cpus, memory_mib=memory_mib, modules=(*one.modules, *self.modules))
        programs, scripts = (*spec.programs, *self.programs), (*spec.scripts, *self.scripts)
        return replace(spec, machine=made, programs=programs, scripts=scripts)


NO_ADDITIONS = GuestAdditions()


@dataclass(frozen=True)
class Nic:
    """A guest's NIC.

    `name` is the guest's name, `fds` the descriptors of its tap's queues (empty: no NIC). The guest configures eth0
    with `address` (with prefix length) and with permanent `neighbours`, each an IP address and a MAC address.
    """

    name: str
    fds: Sequence[int]
    mtu_bytes: int
    address: str = ""
    mac: str = ""
    neighbours: Sequence[tuple[str, str]] = ()
