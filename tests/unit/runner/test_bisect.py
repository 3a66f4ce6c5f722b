"""A bisect: what it decides, and that it never guesses. Runs are made up."""

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from synthetic_rows import rows, save

from labkit import cli
from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed
from labkit.runner import bisect

pytestmark = pytest.mark.long

Speeds = Callable[[int, int], float]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that makes runs of a value of length_bytes have a speed, and lose packets of 10,000, by the
    value and the run's number."""

    def install(speed: Speeds, noise: float, lost: Speeds = lambda *_: 0) -> list[str]:
        done, seed = list[str](), itertools.count()

        def measure(_experiment: str, given: Mapping[str, Any], folder: Path, _watch: Any) -> Path:
            if "observe" in given:
                raise Failed("perf is not installed")
            if not folder.exists():
                number = int(given["length_bytes"])
                done.append(str(given["length_bytes"]))
                ratio = speed(number, int(folder.name))
                made = rows(
                    {"veth": ratio}, 1, 4, noise=noise, seed=next(seed), length_bytes=number, run=folder.name,
                    sent_count=10_000, lost_count=lost(number, int(folder.name)),
                )  # fmt: skip
                save(folder, made)
            return folder

        monkeypatch.setattr(bisect.running, "measure", measure)
        return done

    return install


FEW = {"values": ("100", "106", "107", "111")}


def search(folder: Path, **given: Any) -> bisect.Answer:
    asked: dict[str, Any] = {
        "experiment": "datapaths", "parameters": {}, "over": "length_bytes", "most_pairs": 6,
        "values": tuple(map(str, range(100, 112))), "conditions": ("slower>3%",),
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    return bisect.Search(
        bisect.Question(**{**asked, **given}), folder, lambda _event: None, lambda _text: None
    ).run()


def test_the_first_bad_of_twelve_is_found_and_what_is_there_is_used_again(
    tmp_path: Path, measured: Any
) -> None:
    done = measured(lambda number, _: 0.9 if number >= 107 else 1.0, 0.002)
    answer = search(tmp_path / "b")
    assert (answer.first_bad, answer.last_good) == ("107", "106")
    assert "+11" in answer.sentence
    assert answer.why == ["no explanation: perf is not installed"]
    count = len(done)
    assert search(tmp_path / "b").sentence == answer.sentence
    assert len(done) == count
    with pytest.raises(BadInput, match="holds another bisect, by its conditions"):
        search(tmp_path / "b", conditions=("slower>5%",))


def test_what_cannot_be_measured_is_skipped(tmp_path: Path, measured: Any) -> None:
    panics = [(111, 1), (100, 2)]  # that booted before, and does again

    def speed(number: int, run: int) -> float:
        if number in (105, 106) or ((number, run) in panics and not panics.remove((number, run))):
            raise Failed("the lab VM did not boot")
        return 0.9 if number >= 108 else 1.0

    measured(speed, 0.002)
    answer = search(tmp_path / "b")
    assert (answer.first_bad, answer.last_good) == ("108", "107")
    assert [one.value for one in answer.steps if one.word == bisect.SKIPPED] == ["105", "106"]
    assert [one.sentence for one in answer.steps if one.word == bisect.SKIPPED] == [
        "the lab VM did not boot"
    ] * 2


def test_skipped_values_beside_the_first_bad_one_leave_several(tmp_path: Path, measured: Any) -> None:
    def speed(number: int, _run: int) -> float:
        if number in (105, 106):
            raise Failed("the lab VM did not boot")
        return 0.9 if number >= 107 else 1.0

    measured(speed, 0.002)
    answer = search(tmp_path / "b")
    assert (answer.first_bad, answer.left) == (None, ["105", "106", "107"])
    assert answer.sentence.startswith(
        "cannot tell the first bad one: it is after 104, one of 105, 106, 107; 105: the lab"
    )


def test_noise_is_no_answer_and_no_difference_is_an_error(tmp_path: Path, measured: Any) -> None:
    done = measured(lambda number, _: 0.97 if number >= 107 else 1.0, 0.2)
    answer = search(tmp_path / "noise")
    assert (answer.first_bad, len(done)) == (None, 12)
    assert "the last value cannot be judged" in answer.sentence
    search(tmp_path / "noise", most_pairs=7)
    assert len(done) == 14, "a higher limit goes on where the lower one ended"
    measured(lambda _number, _run: 1.0, 0.002)
    with pytest.raises(BadInput, match="111 is not worse than 100, so there is nothing to find"):
        search(tmp_path / "equal")


def test_an_only_candidate_is_named(tmp_path: Path, measured: Any) -> None:
    measured(lambda number, _: 0.96 if number >= 150 else 1.0, 0.15)
    answer = search(tmp_path / "b", values=("100", "150"), most_pairs=5)
    assert (answer.first_bad, answer.left) == (None, ["150"])
    assert answer.sentence.startswith(
        "150 is the only candidate after 100, and could not be confirmed: tcp, 1 pair"
    )
    assert re.search(r"ratio 0\.9\d+ \[0\.\d+, 1\.\d+\] \(Student's t over 5 pairs", answer.sentence)
    assert answer.sentence.endswith(bisect.HELP["cannot tell"])


def test_more_pairs_are_measured_where_it_cannot_tell(tmp_path: Path, measured: Any) -> None:
    measured(lambda number, _: 0.95 if number >= 107 else 1.0, 0.01)
    answer = search(tmp_path / "b", most_pairs=30, **FEW)
    assert answer.first_bad == "107"
    assert max(one.pairs for one in answer.steps) > bisect.FIRST_PAIRS


def test_loss_is_judged_in_pairs_of_runs(tmp_path: Path, measured: Any) -> None:
    """The loss of both ends grows from run to run by more than the margin."""
    measured(lambda *_: 1.0, 0.01, lambda number, run: 300 * run + 200 * (number >= 107))
    answer = search(tmp_path / "b", parameters={"protocol": "udp"}, conditions=("loss>1%",), **FEW)
    assert (answer.first_bad, answer.last_good) == ("107", "106")
    assert "+2 %" in answer.sentence


def test_a_gradual_change_has_no_first_bad_value(tmp_path: Path, measured: Any) -> None:
    measured(lambda number, _: 1 - 0.008 * (number - 100), 0.0005)
    answer = search(tmp_path / "b", most_pairs=10)
    assert answer.first_bad is None
    assert "gradual, or the verdicts contradict each other" in answer.sentence
    assert answer.sentence.startswith(
        "104 is the only candidate after 103, and could not be confirmed: 104 is worse"
    )
    assert answer.sentence.endswith(bisect.HELP["not worse"])


def test_a_gate_judges_both_ends_alone_and_a_folder_has_one_bisect(
    tmp_path: Path, measured: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisect, "ENDS_S", 0.0)
    words = [
        "bisect",
        "datapaths",
        "--gate",
        "--fail-if",
        "slower>2%",
        "--over",
        "length_bytes=100,104,107",
        "--folder",
    ]
    for name, speed, noise, code in (("e", 1.0, 0.002, 0), ("s", 0.95, 0.002, 3), ("n", 0.97, 0.2, 4)):
        done = measured(lambda number, _, speed=speed: speed if number >= 107 else 1.0, noise)
        assert cli.main([*words, str(tmp_path / name)]) == code
        assert set(done) == {"100", "107"}
    assert "107 against 100: cannot tell" in capsys.readouterr().out
    with bisect.held(tmp_path / "e"):
        assert cli.main([*words, str(tmp_path / "e")]) == 2
    assert "another bisect runs in" in capsys.readouterr().err


def test_the_order_and_the_kernels_of_a_folder(tmp_path: Path) -> None:
    assert bisect.ordered(["a", "b", "c"], "c", "a") == ("c", "b", "a")
    for number, release in enumerate(("6.1.0-9-amd64", "6.12.5-amd64", "6.1.0-10-amd64")):
        image = bytearray(0x400)
        image[0x202:0x206], image[0x20E:0x210] = b"HdrS", (0x100).to_bytes(2, "little")
        image[0x300 : 0x300 + len(release)] = release.encode()
        (tmp_path / str(number)).write_bytes(image)
    (tmp_path / "readme").write_text("no kernel")
    assert [Path(one).name for one in bisect.kernels_of(tmp_path)] == ["0", "2", "1"]


def test_a_damaged_state_is_named(tmp_path: Path, measured: Any) -> None:
    measured(lambda number, _: 0.9 if number >= 107 else 1.0, 0.002)
    answer = search(tmp_path / "b", **FEW)
    state = tmp_path / "b" / bisect.FILE
    there = run_folder.read_object(state)
    state.write_bytes(state.read_bytes()[:50])
    with pytest.raises(BadInput, match="cannot be read"):
        search(tmp_path / "b", **FEW)
    run_folder.write_json(state, {**there, "words": None})
    with pytest.raises(BadInput, match="is not complete"):
        search(tmp_path / "b", **FEW)
    state.unlink()
    assert search(tmp_path / "b", **FEW).first_bad == answer.first_bad
