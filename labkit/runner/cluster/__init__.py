"""A sweep on the workers of an existing Dask cluster: `caller` is what the command line does, `worker` what runs on a
worker, `point` the process that measures one point there, `request` what travels, `folders` how results come back."""
