"""Booting kernels in QEMU, for lab VMs and guests: kernels, initramfs, command lines, console, KVM."""
