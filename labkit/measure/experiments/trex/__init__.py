"""The experiments with TRex: stateless and stateful load tests, and searches."""
