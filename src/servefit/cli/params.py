"""Option types that several commands share."""

from __future__ import annotations

import click

#: More numbers than this in one option is a slip of the keyboard.
MOST_NUMBERS = 1_000_000


class Numbers(click.ParamType[list[float]]):
    """Positive numbers: ``1,8,32``, or every integer of ``1..64``, or both: ``1,2,4..8``."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        """Parse; fails with a usage error that names the bad part."""
        if isinstance(value, list):
            return value
        numbers: list[float] = []
        for part in str(value).split(","):
            low, dots, high = part.strip().partition("..")
            try:
                if dots:
                    first, last = int(low), int(high)
                    if not 1 <= first <= last <= MOST_NUMBERS:
                        raise ValueError
                    numbers.extend(float(n) for n in range(first, last + 1))
                else:
                    number = float(low)
                    if not 0 < number < float("inf"):
                        raise ValueError
                    numbers.append(number)
            except ValueError:
                self.fail(
                    f"{part.strip()!r} is not a positive number or a range such as 1..64",
                    param,
                    ctx,
                )
        return numbers


NUMBERS = Numbers()
