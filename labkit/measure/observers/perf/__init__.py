"""perf stat and perf record."""
