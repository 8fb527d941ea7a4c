"""Ask a service over HTTP about each text: `python jobs/examples/service.py -i 'in/*.jsonl' -o out --url http://…/score`.

The service is sent {"texts": [...]} and answers {"scores": [...]}, a number for each text. What may go wrong with it:

- It is busy or down (429, 500 and above, no connection, no answer, or one that is cut off): the batch waits as long as
  the service says, and is asked for again.
- It refuses a text (400, 413, 422): the row is found by asking for parts of the batch, and is set aside.
- It refuses the caller (401, 403), or answers something else: the shard fails with the answer.

A batch that was answered is not asked again when a later one has to wait. The service's own address and the number of
requests at once (`--max-tasks`) do not decide the scores: they may differ from run to run. The model does.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from http.client import BadStatusLine, IncompleteRead

import pyarrow as pa

from curate import BadRow, ConfigError, RetryLater, TextJob, param

REFUSED_TEXT = (400, 413, 422)
BUSY = (408, 425, 429)


class Service(TextJob):
    """Score each text by a service over HTTP."""

    version = "1"
    batch_size = 64  # texts in a request
    max_tasks = 8  # requests at once, over the whole cluster
    model: str = param("default", help="model that the service is asked for")
    url: str = param(help="address that batches are posted to", identity=False)
    timeout_s: float = param(60.0, help="seconds that the service may be silent", identity=False)

    def check(self) -> None:
        """Raises ConfigError for an address that cannot be posted to, which no wait makes right."""
        if not re.match(r"(?i)https?://[^\s/]", self.url):
            raise ConfigError(
                f"--url is {self.url!r}, expected an address that begins with http://HOST or https://HOST"
            )

    def process(self, batch: pa.Table) -> pa.Table:
        scores = self._asked(batch[self.text_column].to_pylist())
        return self.passed_through(batch, text=True).append_column("score", pa.array(scores, pa.float64()))

    def _asked(self, texts: list[str]) -> list[float]:
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("SERVICE_TOKEN"):  # a secret is no parameter: parameters are in the ledger
            headers["Authorization"] = f"Bearer {token}"
        body = json.dumps({"model": self.model, "texts": texts}).encode()
        request = urllib.request.Request(self.url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                answered = answer.read()
        except urllib.error.HTTPError as error:
            if error.code in REFUSED_TEXT:
                raise BadRow(f"the service refuses it: HTTP {error.code}") from None
            if error.code in BUSY or error.code >= 500:
                wait = error.headers.get("Retry-After", "")
                raise RetryLater(float(wait) if wait.isdecimal() else 30, f"HTTP {error.code}") from None
            raise
        except (OSError, IncompleteRead, BadStatusLine) as error:  # no connection, or no whole answer in time
            raise RetryLater(30, str(error)) from None
        return _scores(answered, len(texts))


def _scores(answered: bytes, texts: int) -> list[float]:
    """Returns the numbers of an answer. Raises ValueError with the answer if these are not what was asked for: a text
    of three digits, say, is no three scores."""
    try:
        scores = json.loads(answered, parse_int=float)["scores"]
    except (ValueError, TypeError, KeyError):
        scores = None
    if type(scores) is not list or len(scores) != texts or any(type(score) is not float for score in scores):
        raise ValueError(f'the service answered {answered[:200]!r}, expected {{"scores": […]}} with {texts} numbers')
    return scores


if __name__ == "__main__":
    Service.main()
