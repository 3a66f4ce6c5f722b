"""The live monitor: packets of an interface, selected in the kernel, sampled, counted and kept in bounded memory."""

from labkit.measure.observers.monitor.monitor import Monitor, Report, Request, check_request
from labkit.measure.observers.monitor.sampling import sampler
from labkit.measure.observers.monitor.selection import Selection

__all__ = ["Monitor", "Report", "Request", "Selection", "check_request", "sampler"]
