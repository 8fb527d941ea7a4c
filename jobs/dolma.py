"""From web archives to Dolma's shards: `python jobs/dolma.py --input 'gs://b/*.warc.gz' --output gs://b/dolma
--shards 64 --block-domains gs://b/lists/ut1.txt --eval-sets gs://b/evals/paloma.jsonl.gz`.

What Soldaini et al. 2024, "Dolma: an Open Corpus of Three Trillion Tokens for Language Model Pretraining Research", do
to pages of the web, with the thresholds of Dolma v1.6, each step a job with an output of its own below `--output`:

    pages           the main content of pages, by resiliparse                jobs/extract.py
    urls            domains and URLs (of UT1, say), if lists are given       jobs/urls.py
    languages       English, with a score of 0.5 or more                     jobs/langid.py
    addresses       each URL once; of rows only with `--url-column`          jobs/dedup_exact.py
    exact           each text once                                           jobs/dedup_exact.py
    quality         lines without an end, Gopher's rules as Dolma has them   jobs/quality.py
    personal        mail addresses, phone numbers and IP addresses           jobs/pii.py
    paragraphs      lines that an earlier text has are cut out               jobs/paragraphs.py
    decontaminate   texts of evaluation sets, if these are given             jobs/decontaminate.py
    shards          a random order                                           jobs/shuffle.py

`--from rows` begins behind `pages`, with a text, an id and, for lists, a URL.

What differs from the published one: its models that find sentences toxic are no part of this (`jobs/toxicity.py` and
`jobs/classify.py` score whole texts with a model that is given); it takes pages from CCNet, which reads the texts that
Common Crawl has extracted, and drops lines of neighbouring files there; it takes a whole paragraph of an evaluation set
for contamination, where here 13 words in a row are; it finds copies with a Bloom filter, which takes some texts for
copies that are none; and it has no random order.
"""

from __future__ import annotations

from collections.abc import Iterable

from curate.chain.recipe import Part
from curate.chain.text_recipe import WARC, TextRecipe
from curate.cli.chain import recipe_main
from curate.errors import ConfigError
from curate.job.asset import Asset
from curate.job.params import param

LISTS = ("block_domains", "block_urls")
REPLACEMENTS = {"email": " |||EMAIL_ADDRESS||| ", "phone": " |||PHONE_NUMBER||| ", "ip": " |||IP_ADDRESS||| "}


class Dolma(TextRecipe):
    """Make Dolma's shards of web archives, or of rows of text.

    Rows have the id, the text and the columns to keep, in random order; those of archives have url and date, too.
    """

    url_column: str = param("", help="rows: column of the URL, for lists, and to keep each once; default: none")
    eval_sets: list[Asset] = param([], help="evaluation sets whose texts are dropped: JSON lines or Parquet")
    eval_columns: list[str] = param(["text"], help="columns of the evaluation sets that have their texts")

    def parts(self, begin: str) -> Iterable[Part]:
        """Yields the steps. Raises ConfigError for columns that the rows of pages cannot have, and lists without a
        URL."""
        yield from self.pages(begin, "resiliparse")
        url = "url" if begin == WARC else self.url_column
        lists = self.lists(*LISTS)
        if lists and not url:
            raise ConfigError("lists of domains and URLs need --url-column, the column of rows that has the URL")
        why = "" if lists else "no list of domains or URLs is given (--block-domains, --block-urls)"
        yield Part("urls", "urls", {"url_column": url, **lists}, left_out=why)
        columns = self.columns
        passed = {**columns, "keep_columns": list(dict.fromkeys([*self.kept(begin), *[url] * bool(url)]))}
        yield Part("languages", "langid", {**passed, "keep": ["en"], "min_score": 0.5})
        once = {"normalise": False, "id_column": self.id_column}
        why = "" if url else "rows have no URL without --url-column"
        yield Part("addresses", "dedup_exact", {"by": [url], **once}, left_out=why)
        yield Part("exact", "dedup_exact", {"by": [self.text_column], **once})
        yield Part("quality", "quality", {**passed, "rules": ["dolma"]})
        yield Part("personal", "pii", {**passed, "kinds": sorted(REPLACEMENTS), "replacements": REPLACEMENTS})
        yield Part("paragraphs", "paragraphs", {**columns, "unit": "line", "normalise": "exact", "min_words": 1})
        sets = {"sets": [one.uri for one in self.eval_sets], "set_columns": self.eval_columns}
        why = "" if self.eval_sets else f"no evaluation set is given (--eval-sets){self.unused('eval_columns')}"
        yield Part("decontaminate", "decontaminate", {**columns, **sets}, left_out=why)
        yield self.in_random_order()


if __name__ == "__main__":
    recipe_main(Dolma)
