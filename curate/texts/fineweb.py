"""FineWeb's own rules: Penedo et al. 2024, "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale",
as `FineWebQualityFilter` of datatrove 0.10.1 counts. Lines are between line feeds; blank ones do not count."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.texts.characters import terminal_punctuation
from curate.texts.pieces import Array, lengths, not_blank, occurrences, ratio, split
from curate.texts.words import Words


def measure(texts: pa.Array, words: Words, short_line_chars: int) -> dict[str, Array]:
    """Returns what FineWeb's rules are about, for each text; a short line has at most `short_line_chars`."""
    lines = not_blank(split(texts, "\n"))
    count = lines.count()
    ends = pc.is_in(pc.utf8_slice_codeunits(lines.text, -1), pa.array(sorted(terminal_punctuation()), pa.string()))
    size = lengths(lines.text)
    breaks = occurrences(texts, "\n")
    return {
        "fineweb_lines": count,
        "fineweb_ended_lines": ratio(lines.count(ends), count),
        "fineweb_short_lines": ratio(lines.count(size <= short_line_chars), count),
        "fineweb_repeated_line_chars": ratio(lines.count(lines.repeated() * size), lengths(texts) - breaks),
        "fineweb_breaks": ratio(breaks, words.count),
    }
