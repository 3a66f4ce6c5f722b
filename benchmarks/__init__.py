"""What labkit promises about its own speed, each measured against a reference in the same run: `make bench`."""
