"""Dockerfiles are read as BuildKit reads them, and none of them can do harm by being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_plugins.images.dockerfile.evaluation import CopyStep, RunStep, StageResult, evaluate
from hermes_plugins.images.dockerfile.old_engines import for_old_engines
from hermes_plugins.images.plan import BuildPlan, plan
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageConfig

CONTEXTS = Path(__file__).parent / "builds" / "contexts"


def last_stage(text: str, base: ImageConfig | None = None) -> StageResult:
    found = plan(text)
    stage = found.dockerfile.stages[found.stages[-1].number]
    return evaluate(stage, base or ImageConfig(), found.dockerfile, found.arguments, {})


def runs(text: str) -> list[RunStep]:
    return [step for step in last_stage(text).steps if isinstance(step, RunStep)]


def copies(text: str) -> list[CopyStep]:
    return [step for step in last_stage(text).steps if isinstance(step, CopyStep)]


def evaluated(found: BuildPlan) -> int:
    """Steps of all stages that the result needs."""
    stages = [found.dockerfile.stages[each.number] for each in found.stages]
    arguments = found.arguments
    return sum(
        len(evaluate(stage, ImageConfig(), found.dockerfile, arguments, {}).steps)
        for stage in stages
    )


@pytest.mark.parametrize("folder", sorted(CONTEXTS.iterdir()), ids=lambda path: path.name)
def test_every_dockerfile_of_the_builds_is_read_and_rewritten(folder: Path) -> None:
    text = (folder / "Dockerfile").read_text()
    if folder.name != "no-network":  # which is refused: it needs BuildKit
        rewritten = for_old_engines(text, {"ubuntu:24.04": "other:1"})
        again = plan(rewritten.text)
        assert "ubuntu:24.04" not in again.images
        assert not any(
            instruction.heredocs
            for stage in again.dockerfile.stages
            for instruction in stage.instructions
        )
    assert evaluated(plan(text)) > 0


def test_only_stages_that_the_result_needs_are_planned() -> None:
    found = plan(
        "FROM a AS one\nFROM b AS two\nRUN x\nFROM one AS three\n"
        "FROM scratch\nCOPY --from=three / /\nCOPY --from=c:1 /x /\n"
    )
    assert [each.number for each in found.stages] == [0, 2, 3]
    assert found.images == ("a", "c:1")
    assert found.kind == "build"


def test_a_dockerfile_of_commands_alone_can_be_replayed() -> None:
    assert plan("FROM a\nENV B=1\nRUN c\nWORKDIR /d\nUSER e\n").kind == "replay"
    assert plan("FROM a\nCOPY b c\n").kind == "build"


def test_the_command_of_a_base_image_goes_with_its_entry_point() -> None:
    base = ImageConfig(entrypoint=("old",), command=("with",))
    assert last_stage("FROM a\n", base).config.command == ("with",)
    assert last_stage('FROM a\nENTRYPOINT ["new"]\n', base).config.command == ()
    both = last_stage('FROM a\nCMD ["mine"]\nENTRYPOINT sleep 1\n', base).config
    assert (both.entrypoint, both.command) == (("/bin/sh", "-c", "sleep 1"), ("mine",))


def test_variables_are_those_of_the_line_before() -> None:
    [step] = runs('FROM a\nARG V=1\nENV A=x B="$A y" A=z\nENV C=${A}${B:+"q w"}$V\nRUN go\n')
    found = {name: step.env[name] for name in ("A", "B", "C", "V")}
    assert found == {"A": "z", "B": " y", "C": "zq w1", "V": "1"}


def test_a_heredoc_is_a_script_or_the_input_of_a_command() -> None:
    script, piped = runs("FROM a\nRUN <<EOF\nset -e\n$X\nEOF\nRUN cat <<E > f\nhi\nE\n")
    assert script.argv == ("/bin/sh", "-c", "set -e\n$X\n")
    assert piped.argv == ("/bin/sh", "-c", "cat <<E > f\nhi\nE")


def test_copied_documents_have_their_variables_replaced_unless_quoted() -> None:
    [copy] = copies("FROM a\nENV W=w\nCOPY <<A <<'B' /d/\n$W \"q\"\nA\n$W\nB\n")
    assert copy.documents == (("A", b'w "q"\n'), ("B", b"$W\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nRUN --mount=type=bind,target=/x y\n", "line 2.*--mount=type=bind"),
        ("FROM a\nRUN --security=insecure y\n", "line 2.*--security"),
        ("FROM a\n\nCOPY --parents a b\n", "line 3.*--parents"),
        ("FROM a\nINSTALL x\n", "line 2.*unknown instruction: INSTALL"),
        ("FROM a\nADD https://example.com/x /y\n", "line 2.*curl"),
        ("FROM a\nADD git@example.com:x /y\n", "line 2.*curl"),
        ("FROM a\nCOPY a b /c\n", "line 2.*end with a slash"),
        ("FROM a\nCOPY --chmod=u+x a b\n", "line 2.*octal"),
        ("FROM a\nCOPY --from=1 a b\n", "line 2.*no such stage"),
        ("FROM a\nCOPY --from=$X a b\n", "line 2.*not a variable"),
        ("FROM a\nCOPY a\n", "line 2.*source and a destination"),
        ("FROM a AS\n", "line 1.*AS name"),
        ("FROM $NOTHING\n", "line 1.*empty"),
        ("RUN x\nFROM a\n", "line 1.*only ARG"),
        ("# nothing\n", "no FROM"),
        ("FROM a\nRUN <<EOF\nno end\n", "line 2.*unterminated"),
        ("FROM a\nENV A=${B:?needed}\n", "line 2.*needed"),
        ("FROM a\nENV A=${B\n", "line 2.*missing"),
        ("FROM a\nRUN x\0y\n", "line 2.*NUL"),
        ("FROM a\nSHELL /bin/bash -c\n", "line 2.*JSON"),
        ("FROM a\nRUN <<EOF\n" + ("x" * 70_000 + "\n") * 2 + "EOF\n", "KiB"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(EnvBug, match=message):
        evaluated(plan(text))


DOUBLING = "FROM a\nENV A=0123456789\n" + "ENV A=$A$A\n" * 40
NESTED = "FROM a\nENV A=" + "${B:-" * 3000 + "}" * 3000 + "\n"
PATTERN = "FROM a\nENV A=" + "a" * 60_000 + "\nENV B=${A##*a*a*a*a*a*b}\n"
LOOP = "ARG A=$B\nARG B=$A\nARG A=$B$B\nFROM x$A\n"
MANY_REFERENCES = "FROM a\nENV A=" + "a" * 60_000 + "\nENV B=" + "$A" * 60_000 + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DOUBLING, "KiB"),
        (NESTED, "line 2"),
        (PATTERN, "patterns"),
        (MANY_REFERENCES, "KiB"),
        ("FROM a\n" + "RUN x\n" * 10**6, "lines|KiB"),
        ("FROM a\n" + "RUN x\n" * 2000, "instructions"),
        ("FROM a\n" * 60, "stages"),
        ("#" + " " * 100_000 + "x\nFROM a\n", "comment"),
        ("FROM a\nRUN " + "\\\n" * 30_000 + "x\n", "lines"),
        ("FROM a\nENV " + "A=1 " * 60_000 + "\n", "KiB"),
    ],
    ids=lambda value: value[:20] if len(value) < 20 else "text",
)
def test_bombs_are_refused_before_they_grow(text: str, message: str) -> None:
    with pytest.raises(EnvBug, match=message):
        evaluated(plan(text))


def test_arguments_that_name_each_other_end() -> None:
    assert plan(LOOP).images == ("x",)


def test_old_engines_get_the_same_dockerfile_without_heredocs_and_new_flags() -> None:
    found = for_old_engines(
        "# escape=\\\nFROM --platform=linux/amd64 a AS one\n# kept\n"
        "RUN --mount=type=cache,target=/c make \\\n  all\nRUN <<EOF\nb 'c'\nEOF\n"
        "COPY --chmod=755 --link run.sh /bin/\nFROM one\nCOPY --from=b --chown=:x y z\n",
        {"a": "z:1", "b": "z:2"},
    )
    assert found.text.split("\n") == [
        "# escape=\\",
        "FROM z:1 AS one",
        "# kept",
        "RUN make   all",
        'RUN ["/bin/sh", "-c", "b \'c\'\\n"]',
        'COPY [".hermes-queue/9/run.sh", "/bin/"]',
        "FROM one",
        'COPY --chown=0:x --from=z:2 ["y", "z"]',
        "",
    ]
    assert found.copies == ((".hermes-queue/9", ("run.sh",), 0o755),)


def test_old_engines_get_no_volume_below_which_they_would_discard_changes() -> None:
    found = for_old_engines('FROM a\nVOLUME ["/d", \\\n "/e"]\nRUN echo x >/d/x\nVOLUME /f\n')
    assert [line for line in found.text.split("\n") if line] == ["FROM a", "RUN echo x >/d/x"]


def test_old_engines_build_no_stage_that_the_result_does_not_need() -> None:
    text = "FROM a AS one\nRUN exit \\\n  1\nFROM b\nRUN y\nFROM c\nCOPY --from=1 x y\n"
    needed = {stage.number for stage in plan(text).stages}
    assert for_old_engines(text, {"b": "z"}, needed).text.split("\n") == [
        *("FROM scratch", "FROM z", "RUN y", "FROM c", 'COPY --from=1 ["x", "y"]', "")
    ]


def test_a_document_with_variables_of_the_image_is_refused_for_old_engines() -> None:
    with pytest.raises(EnvBug, match=r"line 2.*\$HOSTNAME"):
        for_old_engines("FROM a\nCOPY <<E /x\n$HOSTNAME\nE\n")
