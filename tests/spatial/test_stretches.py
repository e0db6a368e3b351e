"""What processors read of a split dim, and the order in which it is fetched."""

import itertools

import pytest

import meshax as mx
from meshax.spatial.sliding import Slide
from meshax.spatial.stretches import Stretches, cheapest_order, sent_elements

height, width, depth = mx.dims(height=64, width=16, depth=24)


@pytest.mark.parametrize(
    ("slide", "count", "starts", "needs", "sent"),
    [
        (Slide(height, 3, before=1, after=1), 4, (-1, 15, 31, 47), (18, 18, 18, 18), 2),
        (Slide(height, 3, before=1, after=1), 2, (-1, 31), (34, 34), 1),  # both sides in one permute
        (Slide(height, 3, 2, before=0, after=1), 4, (0, 16, 32, 48), (17, 17, 17, 17), 1),
        (Slide(height, 3, 2, before=1, after=0), 4, (-1, 15, 31, 47), (17, 17, 17, 17), 1),
        (Slide(height, 2, 2), 4, (0, 16, 32, 48), (16, 16, 16, 16), 0),
        (Slide(height, 7, dilation=3, before=9, after=9), 4, (-9, 7, 23, 39), (34, 34, 34, 34), 18),
        (Slide(width, 7, before=3, after=3), 8, (-3, -1, 1, 3, 5, 7, 9, 11), (8, 8, 8, 8, 8, 8, 8, 8), 6),
        (Slide(mx.Dim("n", 5), 2, 2), 4, (0, 2, 4, 6), (2, 2, 0, 0), 0),  # two windows for four processors
    ],
)
def test_what_each_processor_reads(slide, count, starts, needs, sent):
    reads = slide.reads(count)

    assert (reads.starts, reads.needs, reads.sent) == (starts, needs, sent)


def test_a_border_is_what_the_block_grows_by():
    """In any order: what one dim fetched, the next one sends along, and at the end there is one larger block."""
    dims, shape = (height, width, depth), [16, 4, 6]
    reads = [Slide(dim, 3, before=1, after=1).reads(4) for dim in dims]

    for order in itertools.permutations(reads):
        assert sent_elements(shape, dims, order) == 18 * 6 * 8 - 16 * 4 * 6


def test_the_order_that_sends_least():
    """Between two processors one permute carries both sides: later, when the other dim has grown, that saves more."""
    reads = [Slide(height, 3, before=1, after=1).reads(2), Slide(width, 3, before=1, after=1).reads(4)]

    best = cheapest_order([32, 4], (height, width), reads)

    assert [read.dim.name for read in best] == ["width", "height"]
    assert sent_elements([32, 4], (height, width), best) == 2 * 32 + 6
    assert sent_elements([32, 4], (height, width), reads) == 4 + 2 * 34


def test_a_dim_that_is_whole_is_not_fetched():
    assert not Slide(height, 3, before=1, after=1).reads(1).is_split
    assert Stretches(height, (0, 32), (32, 32)).sent == 0
