"""Notebook kernels on this machine and in a lab VM, the widgets of notebooks, and labkit's extension of JupyterLab."""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Have a Jupyter server encrypt the ports of its kernels, unless its user has chosen otherwise.

    Every user of the machine can connect to them, and one of them asks for no key.
    """
    if "transport_encryption" not in server.config.KernelManager:
        # "required" would refuse kernels of other languages that cannot encrypt; labkit's all can.
        kernels = type(server.config)(KernelManager={"transport_encryption": "auto"})
        server.kernel_manager.update_config(kernels)
