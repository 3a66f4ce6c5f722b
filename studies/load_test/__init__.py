"""Load tests with the packet generator or with TRex, stateless and stateful, against the published ones."""
