"""Chain: jobs that feed each other, as one value that runs and that says how far it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curate.around import contextmanager
from curate.chain.file import read_steps
from curate.chain.look import look
from curate.chain.plan import Asked, StepState
from curate.chain.steps import Step, checked
from curate.clock import SystemClock
from curate.errors import ConfigError
from curate.keywords import of_recipe

if TYPE_CHECKING:
    from curate.chain.run import ChainSummary, StepEnd


class Chain:
    """Jobs in order, of which each reads files or the outputs of earlier ones.

    >>> import tempfile
    >>> class Copy(curate.Job):
    ...     version = "1"
    ...     def process(self, batch):
    ...         return batch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     assert curate.range(5).write_parquet(f"{folder}/in", backend="inline").state == "complete"
    ...     chain = curate.Chain(
    ...         [
    ...             curate.Step("first", Copy(), output="out/first", input="in"),
    ...             curate.Step("second", Copy(), output="out/second", input_from="first"),
    ...         ],
    ...         folder=folder,
    ...     )
    ...     ended = chain.run(backend="inline")
    ...     again = chain.run(backend="inline")
    ...     states = chain.status()
    >>> ended.state, [one.summary.dispatched for one in again.steps], [one.state for one in states]
    ('complete', [0, 0], ['complete', 'complete'])
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        folder: str | os.PathLike[str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """`folder` is where relative paths begin: of inputs, outputs, files of jobs, and parameters; by default the
        working directory. `parameters` are those of the recipe that the steps are of, if they are of one: errors name
        these. Raises ConfigError for steps that cannot follow each other."""
        self.folder = os.path.abspath(os.fspath(folder) if folder is not None else ".")  # noqa: PTH100
        """Where relative paths begin."""
        self.steps = checked(steps, self.folder)
        """The steps, with absolute paths."""
        self._parameters = parameters

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Chain:
        """Returns the chain of a TOML file, whose folder is where relative paths begin. Raises ConfigError.

        >>> curate.Chain.read("pipeline.toml")  # doctest: +SKIP
        """
        text = os.fspath(path)
        steps = read_steps(text)
        try:
            return cls(steps, folder=Path(text).absolute().parent)
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from error

    def run(
        self,
        *,
        step: str | None = None,
        overwrite: Collection[str] = (),
        redo_stale: bool = False,
        drop_removed: bool = False,
        ended: Callable[[StepEnd], None] = lambda _: None,
        **options: Any,
    ) -> ChainSummary:
        """Brings all steps up to date, each as its job alone is run, and returns how each ended.

        A step runs once all steps that it reads are complete. `step` runs that one alone; `overwrite` names steps that
        are made anew, with all that read them; `ended` is called with each step that ended. Other options are those of
        `Job.run`, for all steps. Raises ConfigError before anything is written if a step cannot run as asked.
        """
        from curate import log
        from curate.chain.run import Request, prepare, run_chain

        log.ensure_configured()
        asked = Asked(redo_stale, drop_removed, frozenset(overwrite))
        request = Request(asked, step, options, ended)
        with self.entered():
            return run_chain(prepare(self.steps, request), request)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Is around what looks at the steps or runs them: relative paths and names of parameters are those of the
        chain.

        >>> with curate.Chain.read("pipeline.toml").entered():  # doctest: +SKIP
        ...     curate.read_parquet("out/kept").count()
        """
        given = {one.name: frozenset(one.options) for one in self.steps}
        named = contextlib.nullcontext() if self._parameters is None else of_recipe(self._parameters, given)
        with contextlib.chdir(self.folder), named:
            yield

    def status(self) -> tuple[StepState, ...]:
        """Returns the state of each step, from outputs and ledgers alone: no job is imported, nothing is written."""
        return tuple(look(self.steps, SystemClock().now()).states.values())
