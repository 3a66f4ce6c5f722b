"""One folder for each question that labkit is asked: its experiment, its findings, its figures."""
