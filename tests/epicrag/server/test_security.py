"""Who may come in: by Host, Origin and token."""

from __future__ import annotations

from typing import Any

import pytest

from epicrag.errors import UsageError
from epicrag.server.security import checked_names, checked_origins, host_name
from epicrag.server.tenants import LOCAL, Tenant, Tenants, digest_of

TOKEN = "an-operators-token-0001"
ALICE, BOB = "alices-own-token-0002", "bobs-own-token-000003"
TENANTS = Tenants(
    (
        (digest_of(TOKEN), LOCAL),
        (digest_of(ALICE), Tenant("alice", "tenant:alice", may_ask=True)),
        (digest_of(BOB), Tenant("bob", "tenant:bob")),
    )
)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def status(server: Any, **headers: str) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return int(server.client.get("/v1/models", headers=given).status_code)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:9", "[::1]:8000", "10.1.2.3", "a.localhost"]
)
def test_own_names_and_addresses_are_answered(server: Any, host: str):
    assert status(server, host=host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000"]
)
def test_a_name_that_was_turned_to_this_address_is_refused(server: Any, host: str):
    answer = server.client.get("/v1/models", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "unknown_host"


@pytest.mark.parametrize(
    "host", ["", "a b", "user@localhost", "localhost/x", "[::1", "localhost:x"]
)
def test_a_host_that_is_none_is_a_bad_request(server: Any, host: str):
    assert status(server, host=host) in (400, 403)


def test_an_allowed_name_is_answered(make_server: Any):
    server = make_server(allow_hosts=("notes.example",))
    assert status(server, host="Notes.Example:443") == 200
    assert status(server, host="other.example") == 403


def test_pages_of_other_sites_are_refused(server: Any):
    assert status(server, origin="https://evil.example") == 403
    assert status(server, origin="null") == 403
    assert status(server, origin="http://[") == 403
    assert status(server, origin="http://127.0.0.1:8001") == 403
    assert status(server, sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert status(server, origin="http://127.0.0.1:8000") == 200
    assert status(server, sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200


def test_a_link_from_another_site_may_lead_here(server: Any):
    assert status(server, sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200


def test_pages_of_an_allowed_origin_may_ask(make_server: Any):
    server = make_server(allow_origins=("https://notes.example",))
    headers = {"origin": "https://notes.example"}
    answer = server.client.get("/v1/models", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://notes.example"
    asked = {**headers, "access-control-request-method": "POST"}
    assert server.client.options("/v1/ask", headers=asked).status_code == 200
    refused = server.client.get("/v1/models", headers={"origin": "https://other.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_nothing_is_said_to_other_origins_by_default(server: Any):
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = server.client.options("/v1/ask", headers=asked)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_token_is_asked_for_where_there_are_some(make_server: Any):
    server = make_server(tenants=TENANTS)
    answer = server.client.get("/v1/models")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["type"] == "authentication_error"
    for wrong in (bearer(TOKEN + "x"), {"Authorization": TOKEN}, {"Authorization": "Bearer "}):
        assert server.client.get("/v1/models", headers=wrong).status_code == 401
    assert server.client.get("/v1/models", headers=bearer(TOKEN)).status_code == 200
    assert status(server, authorization=f"bearer {ALICE}") == 200


def test_two_tokens_are_none(make_server: Any):
    server = make_server(tenants=TENANTS)
    twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
    assert server.client.get("/v1/models", headers=twice).status_code == 401


def test_health_needs_no_token_and_metrics_the_operators(make_server: Any):
    server = make_server(tenants=TENANTS)
    assert server.client.get("/healthz").status_code == 200
    assert server.client.get("/metrics").status_code == 401
    assert server.client.get("/metrics", headers=bearer(ALICE)).status_code == 403
    assert server.client.get("/metrics", headers=bearer(TOKEN)).status_code == 200


def test_the_index_answers_only_to_whom_it_may(make_server: Any):
    server = make_server(tenants=TENANTS)
    names = {
        token: [
            model["id"]
            for model in server.client.get("/v1/models", headers=bearer(token)).json()["data"]
        ]
        for token in (ALICE, BOB)
    }
    assert "epicrag" in names[ALICE]
    assert "epicrag" not in names[BOB]
    for path, body in (("/v1/search", {"query": "harbour"}), ("/v1/ask", {"question": "harbour?"})):
        answer = server.post(path, body, headers=bearer(BOB))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_index_access")
    assert server.client.get("/v1/passages/" + "0" * 24, headers=bearer(BOB)).status_code == 403


def test_the_secret_of_the_discovery_file_is_the_operators(make_server: Any):
    server = make_server(tenants=TENANTS)
    server.state.secret = "a-secret-of-this-run"
    assert server.client.get("/metrics", headers=bearer("a-secret-of-this-run")).status_code == 200


def test_any_token_will_do_where_none_is_asked_for(server: Any):
    assert status(server, authorization="Bearer sk-whatever") == 200


def test_origins_and_names_are_checked_before_they_are_used():
    assert checked_origins(["https://A.example/", "http://localhost:3000"]) == (
        "https://a.example",
        "http://localhost:3000",
    )
    assert checked_names(["Notes.Example."]) == ("notes.example",)
    for bad in (
        "*",
        "a.example",
        "https://a.example/x",
        "ftp://a.example",
        "https://*.example",
        "",
    ):
        with pytest.raises(UsageError):
            checked_origins([bad])
    for bad in ("*", "", "http://a.example", "a.example:80", "a b"):
        with pytest.raises(UsageError):
            checked_names([bad])


def test_host_names_are_read_without_their_port():
    assert host_name("A.example:80") == "a.example"
    assert host_name("[::1]:80") == "::1"
    assert host_name("a.example:99999") is None
