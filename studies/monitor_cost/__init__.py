"""The experiment `monitor_cost`: what programs that watch an interface cost the machine and the watched traffic."""
