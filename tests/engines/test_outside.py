"""Lists of servers that somebody else started."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.engines.outside import addresses_of
from slime.errors import SlimeError


def test_addresses_and_files_of_addresses_name_each_server_once(tmp_path: Path) -> None:
    listed = tmp_path / "servers.txt"
    listed.write_text("# of rack 7\nhttp://10.0.0.7:30000\n\n  http://[fe80::1]:30000/\nhttp://host.a-b:1\n")
    found = addresses_of(["http://10.0.0.7:30000/", str(listed)])
    assert found == ["http://10.0.0.7:30000", "http://[fe80::1]:30000", "http://host.a-b:1"]


@pytest.mark.parametrize("entry", ["10.0.0.7:30000", "https://host:1", "http://host", "http://host:1/v1", "none.txt"])
def test_what_is_no_address_is_named(entry: str) -> None:
    with pytest.raises(SlimeError, match=f"^rollout.addresses: '{entry}' is neither an address nor a file. Write"):
        addresses_of([entry])


def test_a_line_that_is_no_address_is_named(tmp_path: Path) -> None:
    listed = tmp_path / "servers.txt"
    listed.write_text("http://host:1\nhost:2\n")
    with pytest.raises(SlimeError, match=rf"^{listed}:2: 'host:2' is no address"):
        addresses_of([str(listed)])
