"""Code that both measurement and analysis use: errors, units, the schema of rows, run folders, packets."""
