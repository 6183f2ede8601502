from __future__ import annotations

import pytest

from servefit.explore.session import Session
from servefit.explore.wording import in_labels


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("give cv_il and cv_ol", "give Input spread and Output spread"),
        ("corr = 0.5: no", "Correlation = 0.5: no"),
        ("raise --gpu-memory-utilization or --rate", "raise Utilisation or Request rate"),
        ("draft_tokens a step", "Draft tokens a step"),
        ("the model on this gpu at a rate", "the model on this gpu at a rate"),
        ("'opt_model/x_tokens' --no-such cv_input_x", "'opt_model/x_tokens' --no-such cv_input_x"),
    ],
)
def test_messages_name_the_controls_by_their_labels(
    session: Session, said: str, shown: str
) -> None:
    assert in_labels(session.controls(), said) == shown
