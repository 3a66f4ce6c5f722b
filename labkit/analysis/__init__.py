"""The analysis: read rows and profiles, judge them, draw them. It imports nothing from labkit.measure."""
