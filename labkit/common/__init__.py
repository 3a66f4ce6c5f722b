"""What both wings use: errors, units, the schema of rows, run folders, packets."""
