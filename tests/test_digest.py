"""Digests are those of zlib over the whole file, however it was written and whoever reads it."""

import io
import random
import zlib

import pytest

from slime.digest import DigestingFile, facts_of


def test_the_digest_of_a_written_file_is_that_of_its_content(tmp_path):
    """In pieces of any size and type, from nothing to more than is copied at a time."""
    pick, path, total = random.Random(3), tmp_path / "file", 0
    with DigestingFile(path) as file:
        for size in (0, 1, 7, 2**20, 2**20 + 1, 3_500_000, 0, 5):
            data = pick.randbytes(size)
            assert file.write(pick.choice([bytes, bytearray, memoryview])(data)) == size
            total += size
            assert file.tell() == total
    content = path.read_bytes()
    assert file.facts == {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    assert facts_of(path) == file.facts


def test_views_of_wider_items_are_counted_in_bytes(tmp_path):
    with DigestingFile(tmp_path / "file") as file:
        assert file.write(memoryview(bytes(range(16))).cast("I")) == 16
    assert file.facts == facts_of(tmp_path / "file")
    assert file.facts["bytes"] == 16


def test_it_is_written_in_order(tmp_path):
    with DigestingFile(tmp_path / "file") as file, pytest.raises(io.UnsupportedOperation):
        file.seek(0)
