"""The datapaths that CNIs and rootless containers choose between today."""
