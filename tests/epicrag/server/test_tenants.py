"""The token file, and the operator's token."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from epicrag.errors import UsageError
from epicrag.server.tenants import LOCAL, Tenant, load_tenants

ALICE, BOB = "alices-own-token-0001", "bobs-own-token-000002"
SHA256 = hashlib.sha256(BOB.encode()).hexdigest()
BOTH = f"""
[[tenants]]
name = "alice"
token = "{ALICE}"
index = true

[[tenants]]
name = "bob"
sha256 = "{SHA256.upper()}"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(BOTH)
    path.chmod(0o600)
    return path


def test_each_token_is_a_tenant_of_its_own(file: Path):
    tenants = load_tenants(file, None)
    assert tenants.of(ALICE) == Tenant("alice", "tenant:alice", may_ask=True)
    assert tenants.of(BOB) == Tenant("bob", "tenant:bob")
    assert tenants.of(SHA256) is None
    assert tenants.of("") is None
    assert ALICE not in repr(tenants)


def test_the_operators_token_is_beside_them(file: Path):
    tenants = load_tenants(file, "the-operators-token-3")
    assert tenants.of("the-operators-token-3") == LOCAL
    assert not load_tenants(None, None).wants_token


def test_sharing_puts_all_in_one_namespace(file: Path):
    file.write_text("share = true\n" + BOTH)
    tenants = load_tenants(file, None)
    assert {tenant.namespace for _, tenant in tenants.known} == {"shared"}


def test_an_operator_may_be_named(file: Path):
    file.write_text(BOTH.replace("index = true", "operator = true"))
    alice = load_tenants(file, None).of(ALICE)
    assert alice and alice.is_operator and not alice.may_ask


def test_tokens_that_all_may_read_are_refused(file: Path):
    file.chmod(0o644)
    with pytest.raises(UsageError, match="may read the tokens") as caught:
        load_tenants(file, None)
    assert "chmod 600" in str(caught.value.hint)
    file.write_text(f'[[tenants]]\nname = "bob"\nsha256 = "{SHA256}"\n')
    assert load_tenants(file, None).of(BOB)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tenants = 3",
        "tenants = []",
        "tenants = [3]",
        "typo = 1\n" + BOTH,
        'share = "yes"\n' + BOTH,
        BOTH + BOTH,
        BOTH.replace('name = "alice"', ""),
        BOTH.replace('"alice"', '"a/b"'),
        BOTH.replace('"alice"', '"bob"'),
        BOTH.replace('name = "alice"', "name = 3"),
        BOTH.replace(ALICE, "short"),
        BOTH.replace(ALICE, "with spaces in it 123"),
        BOTH.replace(ALICE, "nicht-ganz-ascii-äöü"),
        BOTH.replace(ALICE, BOB),
        BOTH.replace(SHA256.upper(), "abc"),
        BOTH.replace("index = true", 'index = "yes"'),
        BOTH.replace("index = true", f'sha256 = "{SHA256}"'),
        BOTH.replace("index = true", "admin = true"),
        "[[tenants",
    ],
)
def test_a_file_that_says_something_else_is_refused(file: Path, text: str):
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_tenants(file, None)
    assert ALICE not in f"{caught.value.message} {caught.value.hint}"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_tenants(tmp_path / "none.toml", None)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not TOML"):
        load_tenants(tmp_path / "binary", None)


def test_a_short_token_of_the_environment_is_refused():
    with pytest.raises(UsageError, match="EPICRAG_TOKEN"):
        load_tenants(None, "secret")
