"""Prints the samples of a folder of MDS as JSON, a line each, as mosaicml-streaming reads them, by its own Python.

python mds_samples.py FOLDER
"""

import json
import sys
from typing import Any

from streaming import StreamingDataset  # type: ignore[import-not-found]


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def main(folder: str) -> None:
    dataset = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    # In the order of the index, and as a training loop gets them.
    for sample in dataset:
        print(json.dumps({name: plain(value) for name, value in sample.items()}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
