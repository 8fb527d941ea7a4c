"""Functions, methods and arguments of ray.data that curate lacks, each with one line that says what to write instead;
and functions of other libraries.

The first table is of functions of the module, the second of methods of a Dataset, the third of arguments. Two more are
of options that belong to another method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.keywords import BY_USING

_BYTES = "write read_binary_files(paths).flat_map(decode), or read_datasource(source) with a curate.Datasource of yours"
_EXPORT = "export it to Parquet, and write read_parquet(paths)"
_ARROW = "convert to Arrow and write from_arrow(table)"
_TABLES = "write from_arrow(tables), from_pandas(frames) or from_numpy(arrays)"

FUNCTIONS: Mapping[str, str] = {
    "range_tensor": "write range(n).add_column('data', fn), or from_numpy(array)",
    "list_stats_summaries": "write stats() of the dataset",
    # of other libraries
    "from_arrow_refs": _TABLES,
    "from_blocks": _TABLES,
    "from_numpy_refs": _TABLES,
    "from_pandas_refs": _TABLES,
    "from_daft": _ARROW,
    "from_dask": _EXPORT,
    "from_mars": _EXPORT,
    "from_modin": _EXPORT,
    "from_spark": _EXPORT,
    "from_tf": "write from_items(list(dataset.as_numpy_iterator()))",
    "from_torch": "write from_items(list(dataset))",
    # of files
    "read_audio": _BYTES,
    "read_avro": _BYTES,
    "read_lerobot": _BYTES,
    "read_mcap": _BYTES,
    "read_orc": _BYTES,
    "read_videos": _BYTES,
    "read_zarr": _BYTES,
    # of databases
    "read_clickhouse": _EXPORT,
    "read_delta": _EXPORT,
    "read_delta_sharing_tables": _EXPORT,
    "read_hudi": _EXPORT,
    "read_iceberg": _EXPORT,
    "read_kafka": _EXPORT,
    "read_lance": _EXPORT,
    "read_mongo": _EXPORT,
    "read_snowflake": _EXPORT,
    "read_sql": _EXPORT,
    "read_unity_catalog": _EXPORT,
}
"""By the name of the function of ray.data."""

_READ_JSON = "write read_json(paths)"
_READ_PARQUET = "write read_parquet(paths)"
_ITEMS = "write from_items(rows)"

FUNCTIONS_OF_OTHERS: Mapping[str, str] = {
    "from_csv": "write read_csv(paths)",
    "from_dict": "write from_arrow(pyarrow.table(columns))",
    "from_dicts": _ITEMS,
    "from_generator": "write from_items(list(rows)) if they are few, or read_datasource(source) with a "
    "curate.Datasource of yours",
    "from_json": _READ_JSON,
    "from_list": _ITEMS,
    "from_parquet": _READ_PARQUET,
    "from_pylist": _ITEMS,
    "load_dataset": "write read_huggingface('org/name', split='train')",
    "read_jsonl": _READ_JSON,
    "read_ndjson": _READ_JSON,
    "scan_csv": "write read_csv(paths)",
    "scan_ndjson": _READ_JSON,
    "scan_parquet": _READ_PARQUET,
}
"""The same of Polars, pandas and Hugging Face datasets."""

_LOAD = "write files with write_parquet(path) and load those; each is complete or absent, and named after its input"
_FILES = "write_parquet(path), write_json(path) or write_csv(path)"
_PER_ROW = "write each file in a map_batches function and name it after its row, because a shard may run more than once"
_HANDED = "pass the dataset itself where Arrow is read (__arrow_c_stream__), or the files of write_parquet(path)"
_NO_REFS = "use to_arrow() or iter_batches(); no block stays in Ray's object store"
_NO_LINEAGE = "pickle the dataset; it is a plan and runs where you load it"
_NO_NAME = "a write is identified by its output path; leave it out"
_NO_INSIDE = "explain() shows the plan, and stats() the last run"

METHODS: Mapping[str, str] = {
    # how it runs
    "context": "write .using(memory_budget=..., block_bytes=..., backend=...)",
    "copy": "a dataset never changes; use it as it is",
    "iterator": "use the dataset: it has iter_rows, iter_batches and iter_torch_batches itself; for several consumers "
    "write streaming_split(n)",
    "map_batches_internal": "write map_batches(fn)",
    "name": _NO_NAME,
    "set_name": _NO_NAME,
    "serialize_lineage": _NO_LINEAGE,
    "deserialize_lineage": _NO_LINEAGE,
    "has_serializable_lineage": _NO_LINEAGE,
    "get_dataset_id": _NO_NAME,
    "get_stats_summary": _NO_INSIDE,
    "get_internal_block_refs": _NO_REFS,
    "iter_internal_ref_bundles": _NO_REFS,
    # rows
    "mix": "write union(other), mix_sources({'a': 0.7, 'b': 0.3}, budget, id_column='id') by a column of sources, and "
    "random_shuffle(seed=...)",
    "randomize_block_order": "write random_shuffle(seed=...), or for training "
    "iter_batches(local_shuffle_buffer_size=...)",
    "summary": "write aggregate([('n', 'mean'), ('n', 'min'), (None, 'count')])",
    "to_random_access_dataset": "write sort(key).write_parquet(path), and look rows up with "
    "read_parquet(path, filter=...)",
    # other libraries
    "iter_jax_batches": "write iter_batches(batch_format='numpy'), and jax.numpy.asarray of each array",
    "iter_tf_batches": "write iter_batches(batch_format='numpy'), and tf.convert_to_tensor of each array",
    "to_tf": "write tf.data.Dataset.from_generator over iter_batches(batch_format='numpy')",
    "to_arrow_refs": _NO_REFS,
    "to_numpy_refs": _NO_REFS,
    "to_pandas_refs": _NO_REFS,
    "to_daft": _HANDED,
    "to_dask": _HANDED,
    "to_mars": _HANDED,
    "to_modin": _HANDED,
    "to_spark": _HANDED,
    # files and databases
    "write_bigquery": _LOAD,
    "write_clickhouse": _LOAD,
    "write_delta": _LOAD,
    "write_iceberg": _LOAD,
    "write_kafka": _LOAD,
    "write_lance": "write files with write_parquet(path) and load those: Lance publishes whole datasets, and its files "
    "have random names, so that no shard of it could be found done",
    "write_mongo": _LOAD,
    "write_snowflake": _LOAD,
    "write_sql": _LOAD,
    "write_turbopuffer": _LOAD,
    "write_images": _PER_ROW,
    "write_orc": f"write {_FILES}",
}
"""By the name of the method of ray.data.Dataset."""

_PLACES = "Ray chooses nodes by the resources of a task or an actor; set num_cpus, num_gpus, memory or resources"
_RETRIES = "shards are retried automatically (raise curate.RetryLater for a busy service); leave it out"
_RESOURCES = "set num_cpus, num_gpus, memory or resources of the functions and classes that need them: map_batches(...)"
_AUTOMATIC = "outputs are cut by their bytes; leave it out"
_PATHS = "a path names its store, gs://... or local, and its suffix the compression; leave it out"
_GLOB = "write a glob of the files to read: 'data/**/*.parquet'"
_FORMAT = "codec=... is the one option of a format; leave it out"
_PER_FILE = "write repartition(n) before, for n outputs of equally many rows"
_USING = {
    name: f"write .using({name}=...) before"
    for name in ("backend", "block_bytes", "memory_budget", "max_bad_rows", *BY_USING)
}

ARGUMENTS: Mapping[str, str] = {
    **_USING,
    "accept_code_change": "a dataset has no version: it is known by the code of its functions, so other code makes "
    "other outputs; write overwrite=True, or another path",
    "checkpoint.overwrite": "a checkpoint is written once and reused; choose another path, or remove this one",
    # of functions that are called with rows
    "zero_copy_batch": "batches are passed without a copy and may be read-only; leave it out, and copy in the function "
    "the columns it modifies: batch['x'].copy()",
    "udf_modifying_row_count": "a function may always return any number of rows; leave it out",
    "ray_remote_args": _RESOURCES,
    "ray_remote_args_fn": _RESOURCES,
    "ray_remote_kwargs": _RESOURCES,
    "aggregator_ray_remote_args": _RESOURCES,
    "num_cpus": _RESOURCES,
    "num_gpus": _RESOURCES,
    "memory": _RESOURCES,
    "resources": _RESOURCES,
    "compute": "it runs in the tasks that read; leave it out",
    "concurrency": "there is one task per CPU; leave it out, or bound the tasks of a write with max_in_flight=...",
    "accelerator_type": "write resources={'accelerator_type:A100': 0.001}, the name of that resource in Ray",
    "label_selector": _PLACES,
    "fallback_strategy": _PLACES,
    "scheduling_strategy": _PLACES,
    "runtime_env": "pass it to Ray: ray.init(runtime_env=...) before the first run, or ray job submit --runtime-env",
    "max_calls": "a worker keeps its process; leave it out",
    "max_concurrency": "an actor works on one batch at a time; write concurrency=..., or compute=curate.ActorPool(...)",
    "max_restarts": _RETRIES,
    "max_retries": _RETRIES,
    "max_task_retries": _RETRIES,
    "retry_exceptions": _RETRIES,
    "parallelism": "files are split by their bytes, and there is one task per CPU; leave it out",
    "override_num_blocks": "files are split by their bytes; leave it out, or write .repartition(n) before a write",
    # of reading
    "filesystem": _PATHS,
    "arrow_open_stream_args": _PATHS,
    "arrow_open_file_args": _PATHS,
    "compression": "a suffix names the compression of a file to read; for one to write, write codec=...",
    "partition_filter": "write filter(curate.col('year') == 2024): folders like year=2024 are columns",
    "ignore_missing_paths": "a path that is missing is refused; leave it out, and give the paths that exist",
    "shuffle": "write random_shuffle(seed=...)",
    "file_extensions": _GLOB,
    "skip_paths": _GLOB,
    "catalog": "write the path of the table's files",
    "tf_schema": "write schema=pa.schema([...]) to read; what is written has the types of the columns",
    "encoder": "write map(...) before, with a function that makes bytes of a column",
    "allow_pickle": "arrays of Python objects are never loaded, as they may run code; convert them to Parquet",
    "fileselect": "write suffixes=['jpg', '*.json']",
    "filerename": "write rename_columns({...}) behind it",
    "verbose_open": "leave it out",
    "expand_json": "write map(...) behind it, with a function that returns the columns",
    "tensor_column_schema": "write schema=... with a fixed_shape_tensor of pyarrow",
    "include_row_hash": "write map_batches with a function that adds the column",
    "lines": "lines and arrays are recognised automatically; leave it out",
    "parse_options": "write delimiter=... and column_names=... of read_csv; leave out the rest",
    "read_options": "write delimiter=... and column_names=... of read_csv; leave out the rest",
    "convert_options": "write schema=...",
    "arrow_csv_args": "write delimiter=... and column_names=... of read_csv; leave out the rest",
    "arrow_json_args": "write schema=...",
    "arrow_parquet_args": _FORMAT,
    "read_args": "give them to your source",
    "datasource": "write read_datasource(source) with a curate.Datasource",
    "datasink": "write write_datasink(path, sink) with a curate.Datasink",
    # of rows and exchanges
    "num_blocks": "write num_shards=...",
    "num_partitions": _AUTOMATIC,
    "partition_size_hint": _AUTOMATIC,
    "boundaries": _AUTOMATIC,
    "target_num_rows_per_block": "write repartition(n), for n outputs of equally many rows",
    "strict": "write repartition(n), for n outputs of equally many rows",
    "keys": "write partition_cols=[...] of a write, or sort(key)",
    "sort": "write sort(key)",
    "ds": "write join(other, on=..., how=...)",
    "join_type": "write how='inner'",
    "validate_schemas": "columns and types are always checked; leave it out",
    "aggs": "write aggregate([('n', 'mean'), ('n', 'min'), (None, 'count')])",
    "ignore_nulls": "nulls are always ignored; leave it out, or fill them before",
    "fetch_if_missing": "write columns(fetch_if_missing=False), which runs nothing",
    "take_all.limit": "write take(limit)",
    "locality_hints": "all parts are in this process; leave it out",
    # of writing
    "try_create_dir": "folders are made as needed; leave it out",
    "filename_provider": "an output is named after its input, so that a rerun finds it; leave it out",
    "arrow_parquet_args_fn": _FORMAT,
    "arrow_csv_args_fn": _FORMAT,
    "pandas_json_args_fn": _FORMAT,
    "pandas_json_args": _FORMAT,
    "min_rows_per_file": _PER_FILE,
    "max_rows_per_file": _PER_FILE,
    "num_rows_per_file": _PER_FILE,
    "min_bytes_per_file": _PER_FILE,
    "mode": "finished outputs are kept; to replace them write overwrite=True, yes=True, and to add write another path",
}
"""By the name of the argument, or of the function and the argument."""

_OF_A_WRITE = "it is an option of one write: write_parquet(path, {}=...)"
USING: Mapping[str, str] = {
    "limit": "write limit(n) for rows, or write_parquet(path, limit=n) for shards",
    "sample": "write random_sample(fraction) for rows, or write_parquet(path, sample='1%') for shards",
    "allow_incomplete_input": "write read_parquet(paths, allow_incomplete_input=True)",
    **{
        name: _OF_A_WRITE.format(name)
        for name in ("overwrite", "yes", "retry_failed", "keep_stages", "target_task_seconds", "max_in_flight")
    },
    "accept_code_change": "a dataset has no version: it is known by the code of its functions",
}
"""By the name of an option of `Job.run` that is none of all runs of a dataset."""


def instead_of_compute(compute: Any) -> str:
    """Returns what to write instead of what ray.data takes as `compute`: its strategies, or their names.

    >>> instead_of_compute("actors")
    'write compute=curate.ActorPool(size=2), or curate.ActorPool(min_size=1, max_size=8)'
    """
    kind = compute if isinstance(compute, str) else type(compute).__name__
    if kind in ("tasks", "TaskPoolStrategy"):
        return "leave it out: a function runs in the reading tasks, one per CPU"
    sizes = [getattr(compute, name, None) for name in ("min_size", "max_size")]
    if kind == "ActorPoolStrategy" and isinstance(sizes[0], int):
        if sizes[0] == sizes[1]:
            return f"write compute=curate.ActorPool(size={sizes[0]})"
        most = f", max_size={sizes[1]}" if isinstance(sizes[1], int) else ""
        return f"write compute=curate.ActorPool(min_size={sizes[0]}{most})"
    return "write compute=curate.ActorPool(size=2), or curate.ActorPool(min_size=1, max_size=8)"
