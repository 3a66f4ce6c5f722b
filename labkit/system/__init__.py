"""The operating system: processes, netlink, machine facts, QEMU, temporary files."""
