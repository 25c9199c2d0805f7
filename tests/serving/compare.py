"""How outputs of two servers are compared: teacher-forced logprobs, and greedy tokens up to a tie."""

from __future__ import annotations


def largest_difference(one: list[list[float]], other: list[list[float]]) -> float:
    """The largest absolute difference of teacher-forced logprobs over all prompts and positions."""
    assert [len(row) for row in one] == [len(row) for row in other]
    return max(abs(a - b) for rows in zip(one, other) for a, b in zip(*rows))


def assert_same_tokens(
    one: list[list[int]], other: list[list[int]], best: list[list[list[float]]], tolerance: float
) -> None:
    """Equal tokens; where they part, the two best logprobs (`best`, of either) must lie within `tolerance`.

    Behind such a tie the sequences are different texts and are not compared.
    """
    for row, (left, right) in enumerate(zip(one, other)):
        assert len(left) == len(right)
        for at, (a, b) in enumerate(zip(left, right)):
            if a != b:
                first, second = best[row][at]
                assert first - second < tolerance, f"prompt {row}, token {at}: {a} and {b}, no tie: {first} {second}"
                break
