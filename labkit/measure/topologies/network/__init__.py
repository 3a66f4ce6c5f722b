"""A network described as data: parts, checks, construction."""
