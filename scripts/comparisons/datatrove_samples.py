"""Prints a folder of datatrove's tokens as JSON, as datatrove reads them, by its own Python: a line for each sample of
its dataset, then one for each document by its index, as the step reads them that merges and shuffles files.

python datatrove_samples.py FOLDER LENGTH BYTES_OF_A_TOKEN
"""

import json
import sys
from typing import Any

import numpy as np
from datatrove.io import get_datafolder  # type: ignore[import-not-found]
from datatrove.pipeline.tokens.merger import get_data_reader, load_doc_ends  # type: ignore[import-not-found]
from datatrove.utils.dataset import DatatroveFolderDataset  # type: ignore[import-not-found]


def say(one: dict[str, Any]) -> None:
    print(json.dumps(one))  # noqa: T201


def main(path: str, length: int, width: int) -> None:
    # A sample is the tokens of a sequence, and the one behind it.
    dataset = DatatroveFolderDataset(path, length - 1, token_size=width, return_positions=True)
    for number in range(len(dataset)):
        say({name: value.tolist() for name, value in dataset[number].items()})
    folder = get_datafolder(path)
    for index in folder.list_files(glob_pattern="*.ds.index"):
        name = index.removesuffix(".index")
        # As text, as that step does.
        with folder.open(f"{name}.metadata", "rt") as metadata:
            assert metadata.read().splitlines()[0].split("|")[1] == str(width)
        ends = load_doc_ends(folder.open(index, "rb"))
        for data in get_data_reader(folder.open(name, "rb"), ends, nb_bytes=width):
            say({"document": np.frombuffer(data, f"<u{width}").tolist()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
