"""What it takes to boot a kernel in QEMU, for lab VMs and for guests: kernels, the first file system, command lines,
the console, KVM."""
