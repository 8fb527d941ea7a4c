"""One reader of `scripts/bench loader`, by the Python that has it.

    python loader_run.py curate|curate-int64|streaming|huggingface SOURCE LENGTH BATCH
    python loader_run.py make-streaming|make-huggingface SOURCE OUTPUT LENGTH

It imports what it needs, reads an epoch in random order, in batches, and prints JSON: bytes of the tokens as stored,
and the seconds and those of CPU, in user mode and in the kernel, of all of its processes. `make-...` writes the samples
of arrays of numpy in the reader's own format.
"""

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SEED = 1


def curate(source: str, length: int, batch: int, dtype: Any = None) -> Iterator[Any]:
    from curate.training import TokenShards

    return iter(TokenShards(source, length, batch, SEED, dtype=dtype))


def curate_int64(source: str, length: int, batch: int) -> Iterator[Any]:
    return curate(source, length, batch, np.int64)


def streaming(source: str, length: int, batch: int) -> Iterator[Any]:
    from streaming import StreamingDataset  # type: ignore[import-not-found, import-untyped, unused-ignore]

    del length
    samples = iter(StreamingDataset(local=source, shuffle=True, shuffle_seed=SEED, batch_size=batch))

    def batches() -> Iterator[Any]:
        # As a DataLoader does it.
        while found := [one["tokens"] for _, one in zip(range(batch), samples, strict=False)]:
            yield np.stack(found)

    return batches()


def huggingface(source: str, length: int, batch: int) -> Iterator[Any]:
    import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]

    del length
    found = datasets.load_from_disk(source).to_iterable_dataset(num_shards=8).with_format("numpy")
    shuffled = found.shuffle(seed=SEED, buffer_size=10_000)
    return (one["tokens"] for one in shuffled.iter(batch_size=batch))


def rows_of(source: str, length: int) -> Iterator[Any]:
    for path in sorted(Path(source).glob("*.npy")):
        tokens = np.load(path, mmap_mode="r")
        yield tokens[: len(tokens) // length * length].reshape(-1, length)


def make_streaming(source: str, output: str, length: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=output, columns={"tokens": f"ndarray:uint16:{length}"}) as writer:
        for rows in rows_of(source, length):
            for row in rows:
                writer.write({"tokens": np.asarray(row)})


def make_huggingface(source: str, output: str, length: int) -> None:
    import datasets
    import pyarrow as pa

    tables = [
        pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(rows).reshape(-1)), length)})
        for rows in rows_of(source, length)
    ]
    shutil.rmtree(output, ignore_errors=True)
    datasets.Dataset(pa.concat_tables(tables)).save_to_disk(output)


READERS: dict[str, Callable[[str, int, int], Iterator[Any]]] = {
    "curate": curate,
    "curate-int64": curate_int64,
    "streaming": streaming,
    "huggingface": huggingface,
}


def cpu_s() -> tuple[float, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime for one in used), sum(one.ru_stime for one in used)


def main(reader: str, source: str, *rest: str) -> None:
    if reader.startswith("make-"):
        output, length = rest
        {"make-streaming": make_streaming, "make-huggingface": make_huggingface}[reader](source, output, int(length))
        return
    length_tokens, batch_rows = map(int, rest)
    # Imports, listings and footers are no part of it: the first batch is.
    batches = READERS[reader](source, length_tokens, batch_rows)
    (user, system), started, tokens = cpu_s(), time.perf_counter(), 0
    for batch in batches:
        tokens += batch.size
    user_now, system_now = cpu_s()
    told = {"user_s": user_now - user, "system_s": system_now - system, "seconds": time.perf_counter() - started}
    sys.stdout.write(json.dumps({"bytes": 2 * tokens, **told}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
