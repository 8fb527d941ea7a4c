"""The clusters that datatrove or text-dedup finds, by the Python of an environment of its own.

    python rival_clusters.py datatrove|text-dedup SOURCE NGRAM BANDS ROWS

SOURCE is a Parquet file with a column `text`. Prints, as JSON, a number for each row: that of its cluster.
"""

import json
import pickle
import struct
import subprocess
import sys
import tempfile
from pathlib import Path


def datatrove(source: str, ngram: int, bands: int, rows: int, folder: Path) -> dict[int, int]:
    from datatrove.executor.local import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.dedup import (  # type: ignore[import-not-found]
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import ParquetReader  # type: ignore[import-not-found]

    config = MinhashConfig(n_grams=ngram, num_buckets=bands, hashes_per_bucket=rows)
    signatures, pairs, clusters = (str(folder / name) for name in ("signatures", "pairs", "clusters"))
    name = Path(source).name
    stages = [
        [ParquetReader(str(Path(source).parent), glob_pattern=name), MinhashDedupSignature(signatures, config=config)],
        [MinhashDedupBuckets(signatures, pairs, config=config)],
        [MinhashDedupCluster(pairs, clusters, config=config, save_cluster_id=True)],
    ]
    for number, (steps, tasks) in enumerate(zip(stages, (1, bands, 1), strict=True)):
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(folder / f"logs-{number}")).run()
    found = (folder / "clusters" / "000000.clusters").read_bytes()
    return dict(struct.iter_unpack("<2I", found))


def text_dedup(source: str, ngram: int, bands: int, rows: int, folder: Path) -> dict[int, int]:
    command = [sys.executable, "-m", "text_dedup.minhash", "--path", "parquet", "--data_files", source]
    command += ["--split", "train", "--cache_dir", str(folder / "cache"), "--output", str(folder / "out"), "--debug"]
    command += ["--column", "text", "--ngram", str(ngram), "--min_length", "0", "--num_perm", str(bands * rows)]
    command += ["--b", str(bands), "--r", str(rows), "--num_proc", "1"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    with (folder / "out" / "uf.pkl").open("rb") as file:
        found = pickle.load(file)
    return {row: found.find(row) for row in list(found.parent)}


def main() -> None:
    kind, source, *numbers = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        run = {"datatrove": datatrove, "text-dedup": text_dedup}[kind]
        found = run(source, *map(int, numbers), Path(folder))  # type: ignore[call-arg]
    print(json.dumps(found))  # noqa: T201 - the protocol of this program


if __name__ == "__main__":
    main()
