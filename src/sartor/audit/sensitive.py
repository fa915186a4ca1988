"""What an audit finds is about the training records themselves, and no budget covers it: it is shown where somebody says that it may be."""

from __future__ import annotations

from sartor.errors import SartorError

NOTE = "Sensitive: these figures are about the training records themselves, and no budget covers them. Show them to nobody."


def check_said(is_sensitive: bool, said: bool) -> None:
    """Refuse to make a document, table or page of what is sensitive, unless it is said."""
    if is_sensitive and said is not True:
        raise SartorError(
            "what an audit finds is about the training records themselves, and no budget covers showing it: say sensitive=True and show it "
            "to nobody, or audit data that may be shown (findings(..., sensitive=False), replay(..., sensitive=False))."
        )
