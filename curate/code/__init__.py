"""What code says and depends on, as text and as a digest: the same in every process and on every machine."""

from curate.code.closures import Unhashable, function_text, value_text
from curate.code.digest import code_digest

__all__ = ["Unhashable", "code_digest", "function_text", "value_text"]
