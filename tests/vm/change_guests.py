"""Change the ends of a topology in guests, and report the effects. The tests run this as a program, like an
experiment's process.

Arguments: the kind of endpoint, the guest, a change, and changes that are refused. Standard output gets a JSON object.
"""

import json
import sys
from pathlib import Path
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.experiments import changes

RP_FILTER = Path("/proc/sys/net/ipv4/conf/all/rp_filter")


def applied(change: changes.Change, topology: topologies.Topology) -> list[dict[str, Any]] | str:
    """Return the effects of a change, or the sentence that refuses it."""
    try:
        return changes.apply(change, topology)
    except LabkitError as error:
        return str(error)


if __name__ == "__main__":
    endpoint, guest, *texts = sys.argv[1:]
    before = RP_FILTER.read_text()
    with topologies.build("veth_bridge", topologies.Spec(endpoint=endpoint, guest=guest)) as built:
        results = [applied(change, built) for text in texts for change in changes.parse(text)]
    print(json.dumps({"results": results, "rp_filter_here": [before, RP_FILTER.read_text()]}))
