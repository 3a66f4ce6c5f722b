"""The kinds of changes. To add one, add its line to `registry.KINDS`."""
