"""Exchanges: rows change shard, through files that are published like any output.

    map      a map shard (a bundle of pieces of the input, planned from the manifest alone) becomes one *run file*: its
             rows sorted by the order of the exchange, in pages; at its end an index: the key, rows, bytes and checksum
             of every page
    plan     the indexes of all run files tell where the rows of every output lie: cuts between outputs are made at
             starts of pages, so that all outputs are about as large, and none is planned from a guess
    reduce   an output reads its ranges of all run files (memory-mapped where they are local), puts them in order, and
             goes on with the operators that follow

The design drew a sample of the keys first, which runs everything before the exchange twice: a model that scores the
rows that are then sorted by score would score them twice. Here the index of a run file is the sample, drawn from rows
that are there anyway, and of all of them. It costs to sort a map shard and not only to partition it; the rows are then
put in order the faster for it, as Arrow's sort is quick to merge what is in order already.

Everything is a sort. Groups, joins and distinct rows are sorted by their key, with cuts that part no two equal keys; a
shuffle is sorted by a random key; repartitioning keeps the order that there is. So what comes out is in order of its
key, and one mechanism is to be trusted.
"""
