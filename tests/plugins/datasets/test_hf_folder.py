"""Hugging Face folders: shards and a card that describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from records import make_job, make_record

from hermes_plugins.datasets.hf import CardOptions, HfSink
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError
from hermes_queue.sinks.base import RowChoice

pytestmark = pytest.mark.xdist_group("sinks")
"""One process imports pyarrow, and forks sinks and Atropos servers."""


def records(count: int, *, instance: str = "i", score: float | None = 1.0) -> list:
    return [
        make_record(make_job(instance=instance, sample=n, size=64), score) for n in range(count)
    ]


def test_a_folder_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"is a file|cannot be written"):
        HfSink(tmp_path / "file")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(ConfigurationError, match="cannot be written"):
            HfSink(tmp_path / "closed" / "out")


def filled(folder: Path, choice: RowChoice | None = None, **options: object) -> str:
    with HfSink(folder, CardOptions(shard_rows=2, **options), choice) as sink:  # type: ignore[arg-type]
        sink.write([*records(3), *records(1, instance="bad", score=0.0)])
    return (folder / "README.md").read_text()


def test_the_card_counts_what_lies_in_the_shards(tmp_path: Path) -> None:
    card = filled(tmp_path, choice=RowChoice({"clean": True}, 7), licence="mit")
    for line in (
        *("license: mit", "| trajectories | 4 |", "| mean score | 0.7500 |", "| instances | 2 |"),
        *("| 1 | 3 |", "| 0 | 1 |", "- `clean`: True", "| run | 4 |", "| oracle | 4 |"),
        "- without 7 listed instances and repositories",
    ):
        assert line in card.splitlines(), line
    with HfSink(tmp_path) as sink:
        sink.write(records(1, instance="later"))
    assert "| trajectories | 5 |" in (tmp_path / "README.md").read_text()


def test_no_name_in_a_record_or_a_flag_breaks_the_card(tmp_path: Path) -> None:
    markup = "m\n---\n# H\n<script>x</script> ![i](http://e) `b` | c\u2028d"
    [made] = records(1)
    about = made.provenance.model_copy(update={"env_version": markup})
    agent = made.agent.model_copy(update={"model": markup})
    hostile = made.model_copy(update={"provenance": about, "agent": agent})
    with HfSink(tmp_path, CardOptions(name="Spaß 🚀\n# Two\x7f")) as sink:
        sink.write([hostile])
    card = (tmp_path / "README.md").read_text()
    shown = r"m --- # H \<script\>x\</script\> !\[i\](http://e) \`b\` \| c d"
    assert f"| {shown} | 1 |" in card.splitlines()
    assert f"| gsm8k {shown} | 1 |" in card.splitlines()
    assert 'pretty_name: "Spaß 🚀 # Two"' in card.splitlines()
    assert [line for line in card.splitlines() if line.startswith("# ")] == ["# Spaß 🚀 # Two"]


def test_a_card_says_if_no_licence_was_stated(tmp_path: Path) -> None:
    card = filled(tmp_path)
    assert "license:" not in card
    assert "not stated" in card


def test_a_card_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Mine\n")
    with pytest.raises(ConfigurationError, match="not written by hermes-queue"):
        HfSink(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"


def test_a_licence_that_would_break_the_card_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli, ["sink", "hf", "--out", str(tmp_path / "h"), "--licence", "My Licence"]
    )
    assert done.exit_code == 2
    assert "hub's identifier" in done.output
    with pytest.raises(ConfigurationError, match="hub's identifier"):
        HfSink(tmp_path, CardOptions(licence="MIT\nfoo: bar"))


def test_an_empty_folder_has_a_card_without_a_split(tmp_path: Path) -> None:
    with HfSink(tmp_path):
        pass
    assert "data_files" not in (tmp_path / "README.md").read_text()


def test_datasets_opens_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    filled(tmp_path / "h", name="Some: name")
    found = datasets.load_dataset(str(tmp_path / "h"), cache_dir=str(tmp_path / "cache"))
    assert found["train"].num_rows == 4
    first = found["train"][0]
    assert first["sequences"][0]["ids"] == [1, 2, 3]
    assert {row["score"] for row in found["train"]} == {0.0, 1.0}


def test_a_card_lists_the_filters_of_all_of_its_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    with HfSink(tmp_path, choice=RowChoice({"clean": True}, 7)) as sink:
        sink.write(records(1, instance="later"))
    card = (tmp_path / "README.md").read_text()
    assert "filled more than once" in card
    assert "Only the default" in card
    assert "- `clean`: True" in card
    with HfSink(tmp_path, choice=RowChoice({"clean": True}, 7)):
        pass
    assert (tmp_path / "README.md").read_text() == card
