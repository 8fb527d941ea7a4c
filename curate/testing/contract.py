"""The contract of a store, as tests for a user's own store.

Long because it is a list: one short test for each promise.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import os
import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.dataclass import dataclass
from curate.errors import ConfigError, CurateError, GenerationMismatch, ObjectNotFound, StorageError
from curate.storage.protocol import Object, Outcome, Published, Store

_BIG = random.Random(7).randbytes(9 * (1 << 20) + 12345)
"""Beyond one simple upload."""
_ODD_NAMES = [
    "a b",
    "100%",
    "%41",
    "%2F",
    "#x",
    "x?y=z&w",
    "a+b",
    "~tilde",
    "semi;colon,comma",
    "quote'\"`",
    "[glob]*{x}",
    "back\\slash",
    "umlaut-äöü",
    "日本語/テキスト",
    "emoji-😀",
    ".hidden",
    "..twodots",
    "a:b@c=d!",
    "{}",
]


@dataclass(frozen=True)
class StorePlace:
    """A store under test and a prefix to write to. One for each test, empty.

    >>> from curate.stores.memory import MemoryStore
    >>> place = StorePlace("memory://root/", MemoryStore)
    >>> list(place.store.list(place.root)), place.count()
    ([], None)
    """

    root: str
    """URI of an empty directory, with a slash at its end."""
    make: Callable[[], Store]
    """Makes another instance over the same contents."""
    count: Callable[[], dict[str, int] | None] = lambda: None
    """Returns what a server counted, as `Calls.as_dict` does; None where there is no server."""
    foreign: str = "elsewhere://bucket/x"
    """A URI that is not of this store."""
    same_bytes_same_generation: bool = False
    """Whether a generation is a checksum, so that bytes published again have the one that they had before."""

    @cached_property
    def store(self) -> Store:
        """The instance that most tests use."""
        return self.make()


def _names(place: StorePlace, prefix: str = "") -> list[str]:
    return [found.uri.removeprefix(place.root) for found in place.store.list(place.root + prefix)]


class StoreContract:
    """Tests of the contract of `curate.storage.protocol.Store`; derive from it and define `place`.

    >>> from curate.stores.memory import MemoryStore
    >>> class TestMyStore(StoreContract):
    ...     @pytest.fixture
    ...     def place(self):
    ...         return StorePlace("memory://root/", MemoryStore)

    A store that passes can keep outputs, like the stores in curate: it is atomic, create-only, compares content when a
    name exists, lists in order, reads one generation, and counts calls as billed. Takes about 10,000 calls, some of 9
    MiB.
    """

    def test_a_published_object_reads_back(self, place: StorePlace) -> None:
        """Publishing to a free name creates; what is reported is what stat and list report."""
        uri = f"{place.root}a/b/c.txt"
        published = place.store.publish(uri, b"hello")
        assert published.outcome is Outcome.CREATED
        assert published.object == place.store.stat(uri) == next(place.store.list(uri))
        assert (published.object.uri, published.object.size) == (uri, 5)
        assert place.make().read(uri) == b"hello"

    def test_publishing_again_compares_and_never_overwrites(self, place: StorePlace) -> None:
        """A taken name keeps its object: same bytes are IDENTICAL, others DIFFERENT, of the same size or not."""
        uri = f"{place.root}x"
        first = place.store.publish(uri, b"hello").object
        for data, outcome in [
            (b"hello", Outcome.IDENTICAL),
            (b"hellO", Outcome.DIFFERENT),
            (b"hello!", Outcome.DIFFERENT),
            (b"", Outcome.DIFFERENT),
        ]:
            assert place.store.publish(uri, data) == Published(outcome, first)
            with place.store.writer(uri) as writer:
                writer.write(data)
                assert writer.publish() == Published(outcome, first)
        assert place.store.read(uri) == b"hello"

    @pytest.mark.parametrize("how", ["publish", "writer"])
    @pytest.mark.parametrize("same", [True, False], ids=["same", "different"])
    def test_racing_publishers_create_once(self, place: StorePlace, how: str, same: bool) -> None:
        """Of many publishers at once, exactly one creates; the others see its bytes, whole, under one generation."""
        racers = 8
        barrier = threading.Barrier(racers)
        stores = [place.make() for _ in range(racers)]

        def race(index: int, uri: str) -> tuple[bytes, Published]:
            data = b"same" * 5000 if same else bytes([65 + index]) * 20_000
            barrier.wait()
            if how == "publish":
                return data, stores[index].publish(uri, data)
            with stores[index].writer(uri) as writer:
                writer.write(data)
                return data, writer.publish()

        with ThreadPoolExecutor(racers) as pool:
            for lap in range(10):
                uri = f"{place.root}lap-{lap}"
                ended = list(pool.map(race, range(racers), itertools.repeat(uri)))
                assert [p.outcome for _, p in ended].count(Outcome.CREATED) == 1
                rest = Outcome.IDENTICAL if same else Outcome.DIFFERENT
                assert [p.outcome for _, p in ended].count(rest) == racers - 1
                winner = next(data for data, p in ended if p.outcome is Outcome.CREATED)
                assert place.store.read(uri) == winner
                assert {p.object for _, p in ended} == {place.store.stat(uri)}

    def test_racing_publishers_of_large_objects_create_once(self, place: StorePlace) -> None:
        """The same for objects that GCS takes in chunks: the precondition holds at completion."""
        barrier = threading.Barrier(3)
        uri = f"{place.root}big"

        def race(index: int) -> Outcome:
            with place.make().writer(uri) as writer:
                writer.write(_BIG)
                writer.write(bytes([index]))
                barrier.wait()
                return writer.publish().outcome

        with ThreadPoolExecutor(3) as pool:
            outcomes = list(pool.map(race, range(3)))
        assert sorted(o.value for o in outcomes) == ["created", "different", "different"]
        assert place.store.read(uri, -1) == bytes([outcomes.index(Outcome.CREATED)])

    def test_nothing_is_visible_before_publish(self, place: StorePlace) -> None:
        """A writer's bytes show up whole, at publish, or never."""
        uri = f"{place.root}x"
        with place.store.writer(uri) as writer:
            for _ in range(10):
                writer.write(b"z" * 1_000_000)
            assert writer.tell() == 10_000_000
            assert _names(place) == []
            with pytest.raises(ObjectNotFound):
                place.store.stat(uri)
            created = writer.publish()
        assert created.object.size == 10_000_000
        assert _names(place) == ["x"]

    def test_an_abandoned_writer_leaves_nothing(self, place: StorePlace) -> None:
        """Leaving the block without publishing, by an exception too, discards the bytes."""
        with place.store.writer(f"{place.root}x") as writer:
            writer.write(b"1")
        with contextlib.suppress(ZeroDivisionError), place.store.writer(f"{place.root}y") as writer:
            writer.write(b"1" * 20_000_000)
            raise ZeroDivisionError
        assert _names(place) == []

    def test_a_writer_ends_with_publish(self, place: StorePlace) -> None:
        """Writing or publishing after the end says so."""
        with place.store.writer(f"{place.root}x") as writer:
            assert writer.write(b"abc") == 3
            assert writer.write(memoryview(b"defg")) == 4
            writer.publish()
            with pytest.raises(StorageError, match="written to after it was published or discarded; open a new writer"):
                writer.write(b"x")
            with pytest.raises(StorageError, match="published after it was published or discarded; open a new writer"):
                writer.publish()
        assert place.store.read(f"{place.root}x") == b"abcdefg"

    def test_a_writer_is_a_sink_for_libraries(self, place: StorePlace) -> None:
        """pyarrow, gzip and text wrappers write to it, and even close it, without ending it."""
        table = pa.table({"a": list(range(100_000))})
        with place.store.writer(f"{place.root}x.parquet") as writer:
            with pq.ParquetWriter(writer, table.schema) as parquet:
                parquet.write_table(table)
            pa.PythonFile(writer, mode="w").close()
            assert not writer.closed
            created = writer.publish().object
            assert writer.closed
        with place.store.open(created) as stream:
            assert pq.read_table(stream).equals(table)
        with place.store.writer(f"{place.root}x.gz") as writer:
            with gzip.GzipFile("", "wb", fileobj=cast(BinaryIO, writer), mtime=0) as zipped:
                zipped.write(b"text")
            writer.publish()
        assert gzip.decompress(place.store.read(f"{place.root}x.gz")) == b"text"

    def test_a_forgotten_writer_leaves_nothing(self, place: StorePlace) -> None:
        """Even without a block around it."""
        writer = place.store.writer(f"{place.root}x")
        writer.write(b"x" * 10_000_000)
        del writer
        assert _names(place) == []

    def test_empty_objects_are_objects(self, place: StorePlace) -> None:
        """No bytes is a content like any other."""
        assert place.store.publish(f"{place.root}a", b"").outcome is Outcome.CREATED
        assert place.store.publish(f"{place.root}a", b"").outcome is Outcome.IDENTICAL
        with place.store.writer(f"{place.root}b") as writer:
            assert writer.publish().outcome is Outcome.CREATED
        seen = place.store.stat(f"{place.root}b")
        assert seen.size == 0
        assert place.store.read(seen.uri) == place.store.read(seen.uri, -8) == place.store.read(seen.uri, 3, 9) == b""
        with place.store.open(seen) as stream:
            assert stream.read() == b""
        assert _names(place) == ["a", "b"]

    def test_large_objects_round_trip(self, place: StorePlace) -> None:
        """Beyond 8 MiB nothing changes: create-only, compared, readable in parts."""
        uri = f"{place.root}big"
        for outcome in (Outcome.CREATED, Outcome.IDENTICAL):
            with place.store.writer(uri) as writer:
                for start in range(0, len(_BIG), 1_000_000):
                    writer.write(_BIG[start : start + 1_000_000])
                assert writer.publish().outcome is outcome
        with place.store.writer(uri) as writer:
            writer.write(_BIG[:-1] + bytes([_BIG[-1] ^ 1]))
            assert writer.publish().outcome is Outcome.DIFFERENT
        assert place.store.publish(uri, _BIG).outcome is Outcome.IDENTICAL
        assert place.store.read(uri) == _BIG
        assert place.store.replace(uri, _BIG[1:]).size == len(_BIG) - 1
        assert place.store.read(uri) == _BIG[1:]

    def test_lists_come_in_code_point_order(self, place: StorePlace) -> None:
        """ "a-b" before "a.b" before "a/b" before "a0": the order of the whole name, directories or not."""
        written = [
            "a/b",
            "a-b",
            "a.b",
            "a0",
            "a/b/c"[:3] + "-x/c",
            "ab/z",
            "a/ä",
            "a/z",
            "B",
            "~",
            "a/b.d/e",
            "Z/1",
            "😀",
            "ﬀ",
            "é",
        ]
        shuffled = random.Random(3).sample(written, len(written))
        for name in shuffled:
            place.store.publish(place.root + name, name.encode())
        assert _names(place) == sorted(written)
        assert [found.size for found in place.store.list(place.root)] == [
            len(name.encode()) for name in sorted(written)
        ]

    def test_lists_match_a_brute_force_filter(self, place: StorePlace) -> None:
        """Any string is a prefix: of a name, a directory, half of one, or of nothing."""
        choice = random.Random(11)
        written = sorted(
            {"/".join(choice.choices(["a", "b", "ab", "a-", "a.b"], k=choice.randint(1, 3))) for _ in range(40)}
        )
        # A local directory cannot have a file's name.
        written = [name for name in written if not any(other.startswith(name + "/") for other in written)]
        for name in written:
            place.store.publish(place.root + name, b"")
        prefixes = {name[:end] for name in written for end in range(len(name) + 1)} | {"zzz", "a/zzz/", "ab//"}
        for prefix in prefixes:
            assert _names(place, prefix) == [name for name in written if name.startswith(prefix)], prefix

    def test_a_prefix_is_a_string_not_a_directory(self, place: StorePlace) -> None:
        """The root's name without its slash also finds its neighbour."""
        above, _, name = place.root.rstrip("/").rpartition("/")
        wanted = [f"{name}/1", f"{name}2", f"{name}y/1"]
        for one in (*wanted, f"{'b' if name.startswith('a') else 'a'}{name}"):
            place.store.publish(f"{above}/{one}", b"")
        found = [found.uri.removeprefix(f"{above}/") for found in place.store.list(place.root.rstrip("/"))]
        assert found == wanted

    def test_a_list_is_lazy_and_paged(self, place: StorePlace) -> None:
        """A listing asks for a page when it is reached: 2,001 objects are three, the first object costs one."""
        for index in range(2001):
            place.store.publish(f"{place.root}{index:04}", b"")
        before = place.store.calls.copy()
        listing = place.store.list(place.root)
        assert place.store.calls.since(before).list == 0
        next(listing)
        assert place.store.calls.since(before).list == 1
        assert len(list(listing)) == 2000
        assert place.store.calls.since(before).as_dict() == {"list": 3, "get": 0, "put": 0, "delete": 0}

    @pytest.mark.parametrize("name", _ODD_NAMES)
    def test_odd_names_are_plain_names(self, place: StorePlace, name: str) -> None:
        """Whatever a name holds, it is published, found, read, opened and deleted under exactly that name."""
        uri = place.root + name
        created = place.store.publish(uri, name.encode()).object
        assert created.uri == uri
        assert list(place.store.list(place.root)) == list(place.store.list(uri)) == [created]
        assert place.store.stat(uri) == created
        assert place.store.read(uri) == place.store.open(created).read() == name.encode()
        with place.store.writer(uri + ".big") as writer:
            writer.write(_BIG)
            assert writer.publish().object.uri == uri + ".big"
        assert place.store.replace(uri, b"").uri == uri
        assert place.store.delete(uri)
        assert _names(place) == [name + ".big"]

    def test_reads_match_a_brute_force_slice(self, place: StorePlace) -> None:
        """Every start and stop, negative starts and ends beyond the object's included, give Python's slice."""
        content = bytes(range(10))
        uri = f"{place.root}x"
        place.store.publish(uri, content)
        for start in range(-13, 14):
            for stop in [None, *range(14)]:
                begin = max(0, 10 + start) if start < 0 else start
                expected = content[begin:stop]
                assert place.store.read(uri, start, stop) == expected, (start, stop)
        with pytest.raises(ValueError, match="stop is -1; only start may be negative"):
            place.store.read(uri, 0, -1)

    def test_what_is_missing_is_not_found(self, place: StorePlace) -> None:
        """Every call on a missing object says ObjectNotFound and names it, a read of no bytes too; lists are empty."""
        uri = f"{place.root}nothing/here"
        for call in (
            lambda: place.store.stat(uri),
            lambda: place.store.read(uri),
            lambda: place.store.read(uri, 5, 5),
            lambda: place.store.read(uri, -1),
            lambda: place.store.open(Object(uri, 1, "1")).read(),
        ):
            with pytest.raises(ObjectNotFound, match="nothing/here") as caught:
                call()
            assert caught.value.uri in ("", uri)
        assert _names(place) == _names(place, "nothing/") == []
        assert place.store.delete(uri) is False
        assert place.store.delete(uri, "1") is False

    def test_delete_by_generation_spares_another_object(self, place: StorePlace) -> None:
        """A delete that names a generation removes that one or nothing."""
        uri = f"{place.root}x"
        first = place.store.publish(uri, b"one").object
        second = place.store.replace(uri, b"two")
        assert first.generation != second.generation
        with pytest.raises(GenerationMismatch, match=f"{second.generation}, expected {first.generation}"):
            place.store.delete(uri, first.generation)
        assert place.store.read(uri) == b"two"
        assert place.store.delete(uri, second.generation) is True
        assert place.store.delete(uri, second.generation) is False

    @pytest.mark.parametrize("size", [3, len(_BIG)])
    def test_publishing_over_a_generation_spares_another_object(self, place: StorePlace, size: int) -> None:
        """It takes the place of the one that was seen, or of none; another object stays, and one of the same bytes."""
        uri = f"{place.root}x"

        def publish(data: bytes, over: str) -> Published:
            with place.store.writer(uri) as writer:
                writer.write(data)
                return writer.publish(over)

        one, two, three = (bytes([letter]) * size for letter in b"abc")
        first = publish(one, "123")
        assert first.outcome is Outcome.CREATED
        assert publish(one, first.object.generation) == Published(Outcome.IDENTICAL, first.object)
        second = publish(two, first.object.generation)
        assert second.outcome is Outcome.CREATED
        assert second.object == place.store.stat(uri) != first.object
        assert publish(three, first.object.generation) == Published(Outcome.DIFFERENT, second.object)
        assert place.store.read(uri) == two
        assert publish(two, first.object.generation) == Published(Outcome.IDENTICAL, second.object)
        place.store.delete(uri)
        assert publish(three, second.object.generation).outcome is Outcome.CREATED
        assert _names(place) == ["x"]

    def test_asking_for_leave_to_delete_removes_nothing(self, place: StorePlace) -> None:
        """An object may be deleted that was made here, and is still the same one; so may one that does not exist."""
        uri = f"{place.root}x"
        before = place.store.publish(uri, b"one").object
        assert place.store.may_delete(uri) is True
        assert place.store.stat(uri) == before
        assert place.store.delete(uri) is True
        assert place.store.may_delete(uri) is True
        assert place.store.may_delete(f"{place.root}nowhere/x") is True

    def test_generations_differ_whenever_contents_do(self, place: StorePlace) -> None:
        """Contents of the same size, written as fast as can be, never share a generation; nor after a delete, unless
        they are the same, and it is their checksum."""
        uri = f"{place.root}x"
        generations = [place.store.replace(uri, bytes([index])).generation for index in range(50)]
        for index in range(50):
            place.store.delete(uri)
            generations.append(place.store.publish(uri, bytes([index])).object.generation)
        again = generations[50:]
        assert len(set(again)) == 50
        assert generations[:50] == again if place.same_bytes_same_generation else len(set(generations)) == 100

    def test_replace_writes_either_way(self, place: StorePlace) -> None:
        """Replacing needs no object and spares none; readers see one content or the other."""
        uri = f"{place.root}run/heartbeat.json"
        assert place.store.replace(uri, b"a" * 100_000) == place.store.stat(uri)
        stop = threading.Event()
        seen: set[bytes] = set()

        def watch() -> None:
            reader = place.make()
            while not stop.is_set():
                content = reader.read(uri)
                assert len(content) == 100_000
                seen.add(content[:1] if content == content[:1] * 100_000 else b"torn")

        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(watch)
            for letter in b"bcdefgh" * 10:
                place.store.replace(uri, bytes([letter]) * 100_000)
            stop.set()
            watching.result()
        assert seen <= {bytes([letter]) for letter in b"abcdefgh"}

    def test_a_stream_reads_and_seeks_like_a_file(self, place: StorePlace) -> None:
        """Random seeks and reads of an open object agree with the bytes, up to the end and beyond."""
        uri = f"{place.root}big"
        with place.store.writer(uri) as writer:
            writer.write(_BIG)
            opened = writer.publish().object
        choice = random.Random(5)
        with place.store.open(opened) as stream:
            assert stream.seekable()
            assert stream.readable()
            for _ in range(60):
                position = choice.choice(
                    [0, choice.randrange(len(_BIG)), len(_BIG) - choice.randrange(100), len(_BIG) + 5]
                )
                count = choice.choice([0, 1, 100, 200_000, -1])
                stream.seek(position)
                assert stream.read(count) == _BIG[position:][: None if count < 0 else count]
            assert stream.seek(-8, os.SEEK_END) == len(_BIG) - 8
            assert stream.read(4) == _BIG[-8:-4]
            assert stream.seek(2, os.SEEK_CUR) == len(_BIG) - 2
            assert stream.read() == _BIG[-2:]

    def test_a_stream_gives_lines(self, place: StorePlace) -> None:
        """Lines may cross the ends of ranges."""
        lines = [b"%d\n" % index * 50 for index in range(20_000)]
        opened = place.store.publish(f"{place.root}x", b"".join(lines)).object
        with place.store.open(opened) as stream:
            assert b"".join(stream) == b"".join(lines)

    def test_a_stream_is_of_one_generation(self, place: StorePlace) -> None:
        """An object that was replaced since it was listed is not read as if it were the same."""
        uri = f"{place.root}x"
        seen = place.store.publish(uri, b"first").object
        now = place.store.replace(uri, b"other")
        with pytest.raises(
            GenerationMismatch, match=f"{uri} is at generation {now.generation}, expected {seen.generation}"
        ):
            place.store.open(seen).read()
        assert place.store.open(now).read() == b"other"
        place.store.delete(uri)
        with pytest.raises(ObjectNotFound):
            place.store.open(now).read()

    def test_calls_are_counted_exactly_and_alike(self, place: StorePlace) -> None:
        """Each call costs what GCS would bill, on every store; the server's own count agrees."""
        store, uri = place.store, f"{place.root}x"
        expected = {"list": 0, "get": 0, "put": 0, "delete": 0}

        def costs(**calls: int) -> None:
            for kind, count in calls.items():
                expected[kind] += count
            assert store.calls.as_dict() == expected
            assert place.count() in (None, expected)

        costs()
        created = store.publish(uri, b"abc").object
        costs(put=1)
        store.publish(uri, b"abc")
        costs(put=1, get=1)
        store.publish(uri, b"xyz")
        costs(put=1, get=1)
        store.stat(uri)
        store.read(uri)
        store.read(uri, -1)
        store.read(uri, 2, 2)
        costs(get=4)
        store.open(created).read()
        costs(get=1)
        list(store.list(place.root))
        list(store.list(f"{place.root}nothing"))
        costs(list=2)
        with store.writer(f"{place.root}big") as writer:
            writer.write(_BIG)
            costs()
            writer.publish()
        costs(put=1)
        newer = store.replace(uri, b"new")
        costs(put=1)
        with pytest.raises(GenerationMismatch):
            store.delete(uri, created.generation)
        costs(delete=1, get=1)
        store.may_delete(uri)
        costs(delete=1)
        store.delete(uri, newer.generation)
        store.delete(uri)
        costs(delete=2)
        with pytest.raises(ObjectNotFound):
            store.read(uri)
        costs(get=1)
        assert place.make().calls.as_dict() == {"list": 0, "get": 0, "put": 0, "delete": 0}

    def test_counts_hold_under_threads(self, place: StorePlace) -> None:
        """No call is lost from the counts when many threads share the store."""
        place.store.publish(f"{place.root}x", b"x")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: place.store.read(f"{place.root}x"), range(400)))
        assert place.store.calls.get == 400

    def test_a_pickled_store_works(self, place: StorePlace) -> None:
        """A store that travelled sees the same objects, can write, and starts counting at nothing."""
        place.store.publish(f"{place.root}x", b"x")
        copy = pickle.loads(pickle.dumps(place.store))
        assert copy.calls.as_dict() == {"list": 0, "get": 0, "put": 0, "delete": 0}
        assert copy.read(f"{place.root}x") == b"x"
        assert copy.publish(f"{place.root}y", b"y").outcome is Outcome.CREATED
        assert _names(place) == ["x", "y"]

    def test_a_uri_of_another_store_is_refused(self, place: StorePlace) -> None:
        """Handing a store a foreign URI is a slip that is named, on every call."""
        foreign = place.foreign
        for call in (
            lambda: list(place.store.list(foreign)),
            lambda: place.store.stat(foreign),
            lambda: place.store.read(foreign),
            lambda: place.store.publish(foreign, b""),
            lambda: place.store.replace(foreign, b""),
            lambda: place.store.writer(foreign),
            lambda: place.store.delete(foreign),
        ):
            with pytest.raises(ConfigError, match="was given to a store of"):
                call()

    def test_errors_are_of_one_tree(self, place: StorePlace) -> None:
        """A store raises what errors.py names, nothing of its libraries."""
        with pytest.raises(CurateError) as caught:
            place.store.stat(f"{place.root}x")
        assert type(caught.value) is ObjectNotFound
