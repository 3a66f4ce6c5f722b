"""What holds for encrypted links in a kernel that has them: clones of MACsec (by its settings), where an experiment
stores keys, and what differing keys are called.

The tests run this as a program in a lab VM; the arguments are parameters of `datapaths`. Standard output gets a JSON
object. It is one program because importing labkit takes long on an emulated CPU.
"""

from __future__ import annotations

import json
import sys

import clone_macsec
import stored_keys
import wrong_keys

if __name__ == "__main__":
    cloned = {settings: clone_macsec.report(settings) for settings in clone_macsec.SETTINGS}
    stored = stored_keys.report(sys.argv[1:])
    print(json.dumps({"cloned": cloned, "stored keys": stored, "wrong keys": wrong_keys.sentences()}))
