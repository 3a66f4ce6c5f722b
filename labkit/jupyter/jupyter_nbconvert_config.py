"""nbconvert's configuration. The package installs it as etc/jupyter/jupyter_nbconvert_config.py of its environment."""

from labkit.jupyter import stills

stills.register(c)  # type: ignore[name-defined]  # noqa: F821  # nbconvert runs this file with its configuration `c`
