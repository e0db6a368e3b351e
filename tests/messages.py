"""How the messages of a module are pinned: a table of mistakes, each with its error and its whole text."""

from textwrap import dedent

import pytest


def pinned(mistakes):
    """Returns the test of a table {what is wrong: (error, the call, the text)}."""

    @pytest.mark.parametrize(("error", "wrong", "text"), mistakes.values(), ids=mistakes)
    def test(error, wrong, text):
        with pytest.raises(error) as raised:
            wrong()
        assert str(raised.value) == dedent(text).strip()

    return test
