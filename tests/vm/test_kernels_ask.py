"""`labkit kernels` boots a kernel to learn its features and remembers them."""

from pathlib import Path

import pytest

from labkit import cli
from labkit.commands import kernels as kernels_command
from labkit.system.qemu import kernels


# test_kernels.py has the table and what is remembered, test_lab_vm.py the request, test_doctor.py its answer.
@pytest.mark.exhaustive
def test_kernel_capabilities_are_probed_once(
    lab_kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = kernels.find(lab_kernel)
    answer = kernels_command.ask_kernel(kernel, print)
    assert answer["machine"]["kernel"] == lab_kernel
    known = {(one["group"], one["name"]): one for one in answer["capabilities"]}
    assert set(kernels_command.CAPABILITIES.values()) <= set(known), (
        "the table asks for what the doctor does not know"
    )
    # These need a module that leaves interfaces, a device that udev creates, or a tracer without instances on 6.1.
    wanted = [
        *kernels_command.CAPABILITIES.values(),
        ("link kinds", "tap"),
        ("link kinds", "dummy"),
        ("link kinds", "ipvlan"),
    ]
    lacking = [known[each] for each in wanted if not known[each]["available"]]
    assert not lacking, "Debian's kernel has all of these"
    assert kernels_command.remembered(kernel) == answer
    capsys.readouterr()
    assert cli.main(["kernels"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(lab_kernel))
    assert row.count("yes") == len(kernels_command.CAPABILITIES)
