"""What the doctor advises."""

import pytest

from labkit.measure import capabilities
from labkit.measure.capabilities.base import LOAD, Capability


@pytest.mark.parametrize(
    ("alone", "remedy"),
    [
        (False, "as root: modprobe vhost_vsock"),
        (True, "labkit does not load the module vhost_vsock in its lab VMs"),
    ],
)
def test_no_module_is_to_be_loaded_where_nobody_can(
    alone: bool, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability_list = [
        Capability("virtual machines", "vsock guests", False, "missing", "no vsock", f"{LOAD}vhost_vsock"),
        Capability("virtual machines", "kvm", False, "missing", "slow", "boot another kernel"),
    ]
    monkeypatch.setattr(
        capabilities, "_groups", lambda _alone, _versions: [("virtual machines", lambda: capability_list)]
    )
    assert [one.remedy for one in capabilities.capabilities(alone=alone)] == [remedy, "boot another kernel"]
