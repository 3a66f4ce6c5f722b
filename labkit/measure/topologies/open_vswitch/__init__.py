"""Open vSwitch: a private switch inside an experiment, its mirrors, and what reads them.

`rpc` talks to the daemons, `switch` starts them and waits until they are ready, `topology` builds the ports and mirrors
and joins the endpoints to them.
"""
