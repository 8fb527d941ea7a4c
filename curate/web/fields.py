"""The fields of a header, of a record of an archive (ISO 28500, 4) as of an answer of a web server (RFC 9112, 5)."""

from __future__ import annotations

import re


def fields(lines: str) -> dict[str, str]:
    """Returns the fields of a header, whose first line is none, by their names in lower case: of several with one name
    the first. A line that begins with a blank goes on with the field before.

    >>> fields("HTTP/1.1 200 OK\\r\\nContent-Type: text/html;\\r\\n charset=utf-8\\r\\nContent-type: text/plain")
    {'content-type': 'text/html; charset=utf-8'}
    """
    found: dict[str, list[str]] = {}
    values: list[str] | None = None
    # Not `splitlines`, which also ends lines at characters that URLs have, and at 0x85, a part of many in UTF-8.
    for line in re.split("[\r\n]+", lines)[1:]:
        if line.startswith((" ", "\t")) and values is not None:
            values.append(line.strip())
            continue
        before, colon, value = line.partition(":")
        name = before.strip().lower() if colon else ""
        values = None
        if name and name not in found:
            values = found[name] = [value.strip()]
    return {name: " ".join(values) for name, values in found.items()}
