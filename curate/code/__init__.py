"""What code says and depends on, as text and as a digest: the same in every process and on every machine."""

from curate.code.closures import Unhashable, value_text
from curate.code.digest import code_digest
from curate.code.function import callable_text

__all__ = ["Unhashable", "callable_text", "code_digest", "value_text"]
