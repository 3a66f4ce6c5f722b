"""Times and calls of kernel functions, from ftrace, bpftrace and perf-tools."""
