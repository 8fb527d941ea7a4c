"""`python -m curate`: the commands of `curate`."""

from curate.cli.main import main

if __name__ == "__main__":
    main()
