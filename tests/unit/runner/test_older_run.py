"""A run folder of a labkit that did not know a parameter is still the same run."""

import json
from pathlib import Path

import pytest

from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.runner import run


def test_parameters_that_an_older_run_lacks_have_their_defaults(tmp_path: Path) -> None:
    requested = experiments.find("datapaths").parameters.of({"topology": "veth", "pairs": 2}).asdict()
    description = run._description(tmp_path, "datapaths", requested)
    del description["parameters"]["placement"]
    (tmp_path / "run.json").write_text(json.dumps(description))
    usual = experiments.find("datapaths").parameters.of({"topology": "veth", "pairs": 2}).asdict()
    assert run._description(tmp_path, "datapaths", usual)["parameters"] == description["parameters"]
    with pytest.raises(BadInput, match="with other parameters"):
        run._description(tmp_path, "datapaths", usual | {"placement": "scheduler"})
    with pytest.raises(BadInput, match="with other parameters"):
        run._description(tmp_path, "datapaths", usual | {"pairs": [3]})
