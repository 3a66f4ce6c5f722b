"""Load tests with TRex, stateless and stateful, against the published ones."""
