"""Score texts with a fastText model: `python jobs/classify.py --input 'gs://b/pages/*.parquet' --output gs://b/scored
--model gs://b/models/quality.bin --label hq`.

Any supervised model fits: quality (as DCLM's), topic, domain, educational value. With `--label` each row has the
probability of that label, and rows below `--min-score` are dropped. Without it each row has its most probable label,
and the probability of that one; `--keep` names the labels to keep.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.texts.fasttext_model import FastTextModel, check_installed, labels_of, named_label

LOW_SCORE = "score too low"
OTHER_LABEL = "other label"


class Classify(TextJob):
    """Score each record's text with a fastText model."""

    name = "classify"
    version = "1"
    model: Asset = param(help="supervised fastText model (.bin or .ftz), local or a URI")
    label: str | None = param(None, help="label whose probability is written; default: each text's most probable one")
    column: str = param("score", help="column of the probability; the label's is called so, with _label behind it")
    min_score: float = param(0.0, help="drop rows with a lower probability, 0 to 1")
    keep: list[str] = param([], help="without --label: labels to keep; default: all")
    lower: bool = param(False, help="lower-case texts for the model, if it was trained on such")
    keep_text: bool = param(True, help="also write the text to the output")

    def check(self) -> None:
        """Raises ConfigError for parameters that would keep no row, or the wrong ones; or if a package is missing."""
        if not 0 <= self.min_score <= 1:
            raise ConfigError(f"--min-score {self.min_score:g} is no probability; these are between 0 and 1")
        if self.label is not None and self.keep:
            raise ConfigError("--keep is for the most probable label, and --label names one; leave one of them out")
        if self.attributes and (self.keep or self.min_score):
            raise ConfigError(
                "attributes are of each row, and --keep and --min-score drop some; leave these out, and filter by "
                f"{self.column}"
            )
        if not self.column:
            raise ConfigError("--column is empty; name the column of the probability")
        taken = (self.id_column, *[self.text_column] * self.keep_text, *self.keep_columns)
        for name in (self.column, *[f"{self.column}_label"] * (self.label is None)):
            if name in taken:
                raise ConfigError(f"the output has a column {name!r} already; give --column another name")
        check_installed()
        with self.model.open() as file:
            labels = labels_of(file, f"--model {self.model.uri}")
        wanted = [("--keep", one) for one in self.keep] if self.label is None else [("--label", self.label)]
        for option, label in wanted:
            try:
                named_label(labels, label)
            except ConfigError as error:
                raise ConfigError(f"{option}: {error}") from None

    def setup(self) -> None:
        self._model = FastTextModel(self.model.local())
        self._label = None if self.label is None else named_label(self._model.labels, self.label)
        self._kept = [named_label(self._model.labels, name) for name in self.keep]

    def process(self, batch: pa.Table) -> pa.Table:
        texts = batch[self.text_column].to_pylist()
        if self.lower:
            texts = [text.lower() for text in texts]
        table = self.passed_through(batch, text=self.keep_text)
        if self._label is not None:
            score = pa.array(self._model.scores(texts, self._label), pa.float32())
            table = table.append_column(self.column, score)
            fits = pc.is_valid(score)
        else:
            found = [self._model.best(text) for text in texts]
            label = pa.array([name for name, _ in found], pa.string())
            score = pa.array([probability for _, probability in found], pa.float32())
            table = table.append_column(f"{self.column}_label", label).append_column(self.column, score)
            fits = pc.is_in(label, pa.array(self._kept, pa.string())) if self._kept else pc.is_valid(label)
        # Compared as what is stored: a score that reads as 0.7 reaches a minimum of 0.7, whichever double it was.
        sure = pc.greater_equal(score, pa.scalar(self.min_score, pa.float32()))
        self.drop(pc.sum(pc.invert(fits), min_count=0), OTHER_LABEL)
        self.drop(pc.sum(pc.and_not(fits, sure), min_count=0), LOW_SCORE)
        return table.filter(pc.and_(fits, sure))


if __name__ == "__main__":
    Classify.main()
