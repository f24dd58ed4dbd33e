"""`hermes-queue budget`: budgets that runs share are set, listed and lifted."""

from __future__ import annotations

from click.testing import CliRunner

from hermes_queue.cli import cli


def test_the_command_sets_lists_and_lifts_a_budget(ledger, redis_server, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)

    def typed(*words):
        done = CliRunner().invoke(cli, ["budget", *words])
        assert done.exit_code == 0, done.output
        return done.output

    typed("set", "team:a", "--usd", "5")
    assert "0 of 5" in typed("list")
    assert "lifted" in typed("lift", "team:a")
    assert "no budgets are shared" in typed("list")
