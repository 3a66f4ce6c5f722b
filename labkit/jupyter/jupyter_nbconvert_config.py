"""nbconvert's configuration. The package installs it as etc/jupyter/jupyter_nbconvert_config.py of its environment."""

from labkit.jupyter import stills

# As Jupyter servers do (labkit/jupyter/__init__.py): every user of the machine can connect to a kernel's ports.
c.KernelManager.transport_encryption = "auto"  # type: ignore[name-defined]  # noqa: F821
stills.register(c)  # type: ignore[name-defined]  # noqa: F821  # nbconvert runs this file with its configuration `c`
