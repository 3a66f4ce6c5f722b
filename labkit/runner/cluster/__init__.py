"""A sweep on the workers of an existing Dask cluster.

`caller` is the command line's part, `worker` runs on a worker, `point_process` measures one point there, `request` is
what is sent, `folders` returns the results.
"""
