"""A sweep on an existing Dask cluster: its `caller` here, and `worker` and `point_process` on a worker."""
