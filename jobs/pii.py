"""Find what names persons, or opens doors: `python jobs/pii.py --input 'gs://b/pages/*.parquet' --output gs://b/clean`.

Mail addresses, public IP addresses (v4 and v6), phone numbers, card and account numbers whose check digits hold, and
keys of well-known services are found by `curate/texts/pii`, and replaced; or their places are written beside the text;
or the row is dropped. Nothing else in a text changes. The summary counts what was found by kind.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError, did_you_mean
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.texts.pii import KINDS, Found, find, may_have, replaced

PII = "pii"
"""The column of what was found."""
PLACES = pa.list_(pa.struct({"kind": pa.string(), "start": pa.int64(), "stop": pa.int64()}))


class Pii(TextJob):
    """Replace personal data and keys in texts.

    Found are mail addresses, public IP addresses, phone, card and account numbers, and keys of services.
    """

    name = "pii"
    version = "4"
    kinds: list[str] = param(sorted(KINDS), help="what is looked for")
    action: Literal["replace", "annotate", "drop"] = param(
        "replace",
        help="replace it in the text; annotate: write its places, in characters, as the column `pii`; or drop the row",
    )
    replacements: dict[str, str] = param(
        {}, help='what replaces each kind, such as {"email": "email@example.com"}; default: [email], and so on'
    )

    def check(self) -> None:
        """Raises ConfigError for a kind that there is not."""
        for option, names in (("--kinds", self.kinds), ("--replacements", self.replacements)):
            for kind in names:
                if kind not in KINDS:
                    known = ", ".join(sorted(KINDS))
                    raise ConfigError(f"{option} has {kind!r}{did_you_mean(kind, KINDS)}; there are: {known}")
        if unused := [kind for kind in self.replacements if kind not in self.kinds]:
            raise ConfigError(f"--replacements has {unused[0]!r}, and --kinds does not; leave it out, or look for it")
        if not self.kinds:
            raise ConfigError(f"--kinds is empty, so nothing would be found; there are: {', '.join(sorted(KINDS))}")
        if self.replacements and self.action != "replace":
            raise ConfigError(f"--replacements is for --action replace, and the action is {self.action}")
        if self.attributes and self.action != "annotate":
            raise ConfigError(f"attributes are columns beside the text, and --action {self.action} adds none; annotate")
        if PII in (self.id_column, self.text_column, *self.keep_columns) and self.action == "annotate":
            raise ConfigError(f"a column is called {PII!r} already, which --action annotate writes; leave it out")

    def process(self, batch: pa.Table) -> pa.Table:
        texts = batch[self.text_column].combine_chunks()
        places: list[list[Found]] = [[] for _ in range(len(texts))]
        for row in pc.indices_nonzero(may_have(texts, self.kinds)).to_pylist():
            places[row] = find(texts[row].as_py(), self.kinds)
        for kind, number in sorted(Counter(one.kind for found in places for one in found).items()):
            self.count(f"found: {kind}", number)
        table = self.passed_through(batch, text=True)
        if self.action == "annotate":
            told = [[{"kind": one.kind, "start": one.start, "stop": one.stop} for one in found] for found in places]
            return table.append_column(PII, pa.array(told, PLACES))
        if self.action == "drop":
            for kind, number in sorted(Counter(found[0].kind for found in places if found).items()):
                # A number, and not the rows: samples of these, beside the output, would keep what is to go.
                self.drop(number, f"has {kind}")
            return table.filter(pa.array([not found for found in places], pa.bool_()))
        changed = [
            replaced(text.as_py(), found, self._replacement) if found else text.as_py()
            for text, found in zip(texts, places, strict=True)
        ]
        return table.set_column(
            table.column_names.index(self.text_column), self.text_column, pa.array(changed, pa.string())
        )

    def _replacement(self, kind: str) -> str:
        return self.replacements.get(kind, f"[{kind}]")


if __name__ == "__main__":
    Pii.main()
