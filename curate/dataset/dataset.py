"""Dataset: a lazy plan over rows, put together from its parts. Names and semantics are those of ray.data.

Nothing runs before rows are consumed or written. Rows always keep the order of the input.
"""

from __future__ import annotations

from curate.dataclass import dataclass
from curate.dataset.consuming import Consuming
from curate.dataset.exchanges import Exchanges
from curate.dataset.functions import Functions
from curate.dataset.handover import HandingOver
from curate.dataset.rowwise import Rowwise
from curate.dataset.totals import AllRows
from curate.dataset.writing import Writing


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(Writing, Consuming, HandingOver, AllRows, Exchanges, Rowwise, Functions):
    """Rows from a source, with operators applied; every method returns a new dataset.

    >>> import pyarrow.compute as pc
    >>> curate.range(5).with_column("double", pc.field("id") * 2).filter(pc.field("id") > 2).take_all()
    [{'id': 3, 'double': 6}, {'id': 4, 'double': 8}]
    """
