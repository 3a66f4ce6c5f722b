"""A row in which one mirror delivered fewer copies than another has a doubt that names it."""

from labkit.measure.experiments import consistency
from labkit.measure.topologies.base import Copies
from labkit.measure.topologies.open_vswitch import mirrors


def test_doubt_about_mirrors() -> None:
    for each, doubts in (
        (None, []),
        ([10_000, 9_600], []),
        ([5_000, 5_000], []),  # they lost alike, as on a link that is full
        (
            [10_000, 400],
            [
                "copies of the mirrors did not arrive alike: each mirror should have made 10000, 10000 of mirror0"
                " arrived, but 400 of mirror1; a link that they share may have been full"
            ],
        ),
        (
            [0, 0, 0, 0, 0, 9_000],
            [
                "copies of the mirrors did not arrive alike: each mirror should have made 10000, 9000 of mirror5"
                " arrived, but 0 of mirror0, 0 of mirror1, 0 of mirror2, 0 of mirror3 and of 1 more; a link that they"
                " share may have been full"
            ],
        ),
    ):
        expected = 10_000 * len(each or [1])
        assert consistency.doubts({"copies_expected_count": expected, "copies_of_mirrors": each}) == doubts


def test_counts_of_copies() -> None:
    """Counts that are read one after the other differ by the packets in flight."""
    assert consistency.doubts({"copies_expected_count": 200, "copies_of_mirrors": [100, 40]}) == []
    assert consistency.doubts({"copies_expected_count": 0, "copies_of_mirrors": [0, 0]}) == []
    before = Copies(10, (4, 6), (0, 1))
    now = Copies(110, (54, 56), (7, 1))
    assert mirrors.copy_columns(before, now) == {
        "copies_count": 100, "copies_of_mirrors": [50, 50], "copies_unread_count": 7, "unread_of_mirrors": [7, 0],
    }  # fmt: skip
    # Mirrors on one cable may not be told apart, and share a reader; tcpdump's losses are unknown.
    assert mirrors.copy_columns(Copies(0, None, (0,)), Copies(9, None, (2,))) == {
        "copies_count": 9, "copies_unread_count": 2,
    }  # fmt: skip
    assert mirrors.copy_columns(Copies(0, (0, 0), (0,)), Copies(9, (4, 5), (2,))) == {
        "copies_count": 9, "copies_of_mirrors": [4, 5], "copies_unread_count": 2,
    }  # fmt: skip
    assert mirrors.copy_columns(Copies(0, (0, 0), (None, 0)), Copies(9, (4, 5), (None, 0))) == {
        "copies_count": 9, "copies_of_mirrors": [4, 5],
    }  # fmt: skip


def test_proof_needs_the_copies_of_each_mirror() -> None:
    assert mirrors.missing_copies(2, 3, {"copies_count": 6, "copies_of_mirrors": [3, 3]}) is None
    assert mirrors.missing_copies(2, 3, {"copies_count": 6}) is None
    words = mirrors.missing_copies(2, 3, {"copies_count": 6, "copies_of_mirrors": [6, 0]})
    assert words == "each mirror should have made 3 copies, and 6 of mirror0, 0 of mirror1 arrived"
    words = mirrors.missing_copies(6, 1, {"copies_count": 1, "copies_of_mirrors": [1, 0, 0, 0, 0, 0]})
    assert words == (
        "each mirror should have made 1 copy, and 0 of mirror1, 0 of mirror2, 0 of mirror3, 0 of mirror4 and of 1 more"
        " arrived"
    )
    assert (
        mirrors.missing_copies(2, 3, {"copies_count": 5})
        == "2 mirrors should have made 6 copies, and 5 arrived"
    )
