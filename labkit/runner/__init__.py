"""Run an experiment, a sweep, or two hosts together."""
