"""What five documents claim in numbers, and what published runs say about it (docs/FINDINGS.md)."""
