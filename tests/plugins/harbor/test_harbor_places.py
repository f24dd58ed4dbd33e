"""What decides which programs grade, what verifiers fetch, and what counts as a reward."""

from __future__ import annotations

import pytest

from hermes_plugins.harbor.grading.kit import BoxPython, kit_asset
from hermes_plugins.harbor.grading.needs import Needs, needs_of
from hermes_plugins.harbor.grading.places import Decisive, plan
from hermes_plugins.harbor.grading.reward import NoReward, Reward, parse
from hermes_plugins.harbor.grading.suspects import changed_programs, compiled, keys
from hermes_plugins.harbor.grading.undone import steering
from hermes_plugins.harbor.grading.users import changed_users
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.image_slots import FileChange

CONFIG = ImageConfig(
    env={"PATH": "/opt/venv/bin:/usr/bin", "PYTHONPATH": "/srv/lib"},
    workdir="/app",
    entrypoint=("/app/start.sh",),
)
DECISIVE = Decisive.of(CONFIG, "/app")


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/opt/venv/lib/python3.11/site-packages/x.pth",
        "/etc/ld.so.preload",
        "/etc/profile.d/x.sh",
        "/root/.bashrc",
        "/home/a/.local/bin/env",
        "/elsewhere/.cache/uv/wheel",
        "/root/.config/uv/uv.toml",
        "/conftest.py",
        "/app/pytest.py",
        "/app/json/__init__.py",
        "/srv/lib/sitecustomize.py",
        "/app/start.sh",
        "/etc/ssl/openssl.cnf",
        "/etc/perl/strict.pm",
        "/.python-version",
        "/app/uv.toml",
        "/app/plugin-1.0.dist-info/entry_points.txt",
        "/tests/test.sh",
        "/logs/verifier/reward.txt",
    ],
)
def test_files_that_decide_what_runs_are_not_taken_over(path: str) -> None:
    assert DECISIVE.holds(path)


@pytest.mark.parametrize(
    "path",
    [
        "/app/main.py",
        "/app/conftest.py",
        "/app/json/data.txt",
        "/code/__init__.txt",
        "/root/answer",
        "/root/.config/app.toml",
        "/etc/nginx/nginx.conf",
        "/etc/passwd",
        "/etc/ssl/certs/own.pem",
        "/app/own.egg-info/PKG-INFO",
        "/srv/www/index.html",
        "/var/lib/db/data",
        "/opt/tool/bin/x",
    ],
)
def test_an_agents_work_is_taken_over(path: str) -> None:
    assert not DECISIVE.holds(path)


def test_modules_beside_a_script_that_the_image_starts_are_not_taken_over() -> None:
    started = Decisive.of(ImageConfig(entrypoint=("python3", "/opt/service.py")), "/app")
    assert started.holds("/opt/json.py")
    assert not started.holds("/opt/answer.py")


@pytest.mark.parametrize("path", ["/etc", "/etc/ssl", "/opt", "/opt/venv", "/app", "/root", "/var"])
def test_links_in_place_of_folders_with_what_is_left_out_are_seen(path: str) -> None:
    assert DECISIVE.leads_away(path)
    assert not DECISIVE.leads_away(f"{path}/data")


def test_changes_are_taken_deleted_or_left_out() -> None:
    changes = [
        FileChange("/app/new", "added"),
        FileChange("/app/old", "deleted"),
        FileChange("/usr/bin/curl", "changed"),
        FileChange("/tmp/x", "added"),
    ]
    found = plan(changes, DECISIVE)
    assert (found.taken, found.deleted) == (["/app/new"], ["/app/old"])
    assert found.left_out == ["/usr/bin/curl"]


def test_changed_programs_are_seen_and_added_ones_are_not() -> None:
    changes = [
        FileChange("/usr/bin", "changed"),
        FileChange("/usr/bin/python3", "changed"),
        FileChange("/usr/bin/jq", "added"),
        FileChange("/usr/lib/python3/dist-packages/evil.pth", "added"),
        FileChange("/usr/lib/python3/__pycache__/x.pyc", "added"),
        FileChange("/usr/share/doc/jq/copyright", "changed"),
        FileChange("/app/x", "changed"),
    ]
    found = changed_programs(changes, DECISIVE)
    assert found == ["/usr/bin/python3", "/usr/lib/python3/dist-packages/evil.pth"]


@pytest.mark.parametrize(
    "change",
    [
        FileChange("/etc/python3.11/sitecustomize.py", "changed"),
        FileChange("/usr/lib/python311.zip", "added"),
        FileChange("/usr/lib/python3/dist-packages/usercustomize/__init__.py", "added"),
        FileChange("/etc/ssl/openssl.cnf", "changed"),
        FileChange("/etc/ssl", "changed"),
        FileChange("/etc/nsswitch.conf", "changed"),
        FileChange("/opt/venv", "changed"),
        FileChange("/root/.local/lib/python3.11/site-packages/usercustomize.py", "added"),
        FileChange("/home/ann/.local/lib/python3.12/site-packages/x.pth", "added"),
    ],
)
def test_what_every_program_reads_is_a_changed_program(change: FileChange) -> None:
    assert changed_programs([change], DECISIVE) == [change.path]


def test_compiled_modules_of_an_agent_are_known() -> None:
    changes = [
        FileChange("/usr/lib/python3.11/__pycache__", "changed"),
        FileChange("/usr/lib/python3.11/__pycache__/json.cpython-311.pyc", "changed"),
        FileChange("/app/__pycache__", "added"),
        FileChange("/app/x.py", "added"),
    ]
    assert compiled(changes) == [
        "/usr/lib/python3.11/__pycache__/json.cpython-311.pyc",
        "/app/__pycache__",
    ]


@pytest.mark.parametrize(
    "added",
    [
        "/usr/lib/python3.11/pathlib",
        "/usr/lib/python3.11/pathlib.abi3.so",
        "/usr/lib/python3.11/_json.so",
        "/usr/lib/python3.11/json/decoder.so",
        "/usr/lib/python3.11/pytest.py",
        "/root/.local/lib/python3.11/site-packages/pytest/__init__.py",
    ],
)
def test_a_module_in_place_of_another_is_found_by_its_name(added: str) -> None:
    image = [
        "/usr/lib/python3.11/pathlib.py",
        "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so",
        "/usr/lib/python3.11/json/decoder.py",
        "/usr/lib/python3/dist-packages/pytest/__init__.py",
    ]
    assert not keys([added], DECISIVE).keys().isdisjoint(keys(image, DECISIVE))
    other = keys(["/usr/lib/python3.11/tkinter/__init__.py"], DECISIVE)
    assert other.keys().isdisjoint(keys(image, DECISIVE))


def test_programs_libraries_and_packages_are_known_by_the_name_that_finds_them() -> None:
    paths = [
        "/opt/venv/bin/cat",
        "/usr/local/lib/libc.so.6",
        "/usr/local/lib/python3.11/dist-packages/pytest/x.py",
        "/app/x.so",
    ]
    assert set(keys(paths, DECISIVE)) == {"program cat", "library libc.so", "package pytest"}


@pytest.mark.parametrize(
    ("kind", "content", "reward"),
    [
        ("txt", b"1\n", Reward(1.0, {})),
        ("txt", b" 0.25 ", Reward(0.25, {})),
        ("json", b"0.5", Reward(0.5, {})),
        ("json", b'{"reward": 1}', Reward(1.0, {})),
        ("json", b'{"a": 1, "b": 0}', Reward(0.5, {"a": 1, "b": 0})),
        ("json", b'{"reward": 0.25, "b": 1}', Reward(0.25, {"reward": 0.25, "b": 1})),
        ("json", b'{"a": 1e308, "b": 1e308}', Reward(1e308, {"a": 1e308, "b": 1e308})),
    ],
)
def test_a_reward_is_a_number_or_several(kind: str, content: bytes, reward: Reward) -> None:
    assert parse(kind, content) == reward


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("txt", b""),
        ("txt", b"nan"),
        ("txt", b"pass"),
        ("json", b"NaN"),
        ("json", b'{"reward": 1e999}'),
        ("json", b'{"reward": "1"}'),
        ("json", b'{"reward": true}'),
        ("json", b"{}"),
        ("json", b"[1]"),
        ("json", b"[" * 100_000),
    ],
)
def test_anything_else_is_none(kind: str, content: bytes) -> None:
    with pytest.raises(NoReward):
        parse(kind, content)


def test_what_a_usual_verifier_fetches_is_known_from_its_script() -> None:
    script = """\
    apt-get update && apt-get install -y curl  # installs nano, too
    curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
    source $HOME/.local/bin/env
    uvx \\
      -p 3.13 -w pytest==8.4.1 --with numpy,scipy \\
      pytest /tests/test_outputs.py -rA
    """
    found = needs_of(script)
    assert found == Needs(uv=True, packages=("numpy", "pytest==8.4.1", "scipy"))


def test_other_things_that_it_fetches_are_named() -> None:
    script = """\
    apt-get install -y jq
    pip install -q requests==2.0 -i https://pypi.org/simple
    wget https://example.com/data.tar.gz
    curl http://localhost:8080/health
    """
    found = needs_of(script)
    assert found.packages == ("requests==2.0",)
    assert found.other == ("apt-get install jq", "https://example.com/data.tar.gz")


def test_the_kit_of_equal_packages_is_made_once() -> None:
    python = BoxPython("3.11", "x86_64", "glibc 2.36")
    needs = Needs(uv=True, packages=("pytest",))
    assert kit_asset(needs, python) == kit_asset(needs, python)
    older = BoxPython("3.11", "x86_64", "glibc 2.17")
    assert kit_asset(needs, python).key != kit_asset(needs, older).key
    assert "manylinux_2_36" not in kit_asset(needs, older).script


BOX = Decisive.of(ImageConfig(env={"PATH": "/usr/bin:/bin"}), "/app")
HOMES = ("/root", "/home/u", "/srv/moved")


@pytest.mark.parametrize(
    "path",
    [
        "/root/.curlrc",
        "/root/.netrc",
        "/home/u/.npmrc",
        "/home/u/.config/pip/pip.conf",
        "/root/.config/uv",
        "/root/.cache/uv/archive-v0/x/pytest/__init__.py",
        "/root/.local/bin/uv",
        "/root/.local/bin/env",
        "/srv/moved/.wgetrc",
        "/root/.anything/else",
        "/root/.cargo/config.toml",
        "/root/.local/share/uv/python/cpython-3.13/bin/python3",
        "/root/.local/bin/grep",
        "/etc/pip.conf",
        "/etc/apt/apt.conf.d/99hook",
        "/pytest.ini",
    ],
)
def test_settings_of_tools_are_undone_where_an_agents_own_box_grades(path: str) -> None:
    text = "curl -LsSf https://astral.sh/uv/install.sh | sh; . $HOME/.local/bin/env; uvx pytest"
    assert steering([path], HOMES, text, BOX) == {path}


@pytest.mark.parametrize(
    "path",
    [
        "/root/answer",
        "/root/.config",
        "/root/.ssh/id_ed25519",
        "/root/.config/app/settings.json",
        "/root/.local/bin/tool",
        "/root/.local/lib/python3.11/site-packages/x.py",
        "/home/u/.git/HEAD",
        "/root/.cargo/bin/tool",
        "/root/.rustup/toolchains/stable/bin/rustc",
        "/home/u/.local/share/uv/tools/x/bin/x",
        "/home/u/project/.npmrc",
        "/srv/.curlrc",
        "/usr/share/.x",
        "/etc/app.conf",
        "/app/pytest.ini",
    ],
)
def test_what_the_tests_name_and_what_is_no_setting_stays(path: str) -> None:
    text = 'Path.home() / ".ssh"; "~/.config/app/"; run("/root/.local/bin/tool")'
    assert steering([path], HOMES, text, BOX) == set()


def test_a_home_in_which_the_work_is_loses_known_settings_alone() -> None:
    box = Decisive.of(None, "/home/u")
    paths = ["/home/u/.eslintrc", "/home/u/.npmrc", "/home/u/.bashrc"]
    assert steering(paths, ["/home/u"], "", box) == {"/home/u/.npmrc", "/home/u/.bashrc"}


def test_packages_that_tests_install_beside_the_agents_are_known() -> None:
    found = needs_of("uvx -w pytest-json-ctrf pytest\npip install 'attrs>=1' pytest==8.4.1")
    assert found.installed == ("attrs>=1", "pytest==8.4.1")
    assert "pytest-json-ctrf" in found.packages


def test_entry_points_of_the_image_are_programs_and_other_metadata_are_not() -> None:
    place = "/usr/lib/python3/dist-packages/x-1.dist-info"
    changes = [FileChange(f"{place}/{name}", "changed") for name in ("RECORD", "entry_points.txt")]
    assert changed_programs(changes, BOX) == [f"{place}/entry_points.txt"]


ROOT_LINE = "root:x:0:0:root:/root:/bin/bash\n"
NOBODY_LINE = "nobody:x:65534:65534:nobody:/:/bin/sh\n"


@pytest.mark.parametrize(
    ("agents", "changed"),
    [
        (ROOT_LINE + "nobody:x:0:0::/:/bin/sh\n", True),
        (ROOT_LINE + "nobody:x:0:0::/:/bin/sh\n" + NOBODY_LINE, True),  # the first line counts
        ("root:x:0:0:root:/root:/srv/own\n" + NOBODY_LINE, True),
        (ROOT_LINE + NOBODY_LINE + "alice:x:1000:1000::/home/alice:/bin/sh\n", False),
        (ROOT_LINE + NOBODY_LINE.replace("/bin/sh", "/bin/zsh"), False),
        (ROOT_LINE, False),
    ],
)
def test_a_name_of_the_image_stands_for_the_same_user(agents: str, changed: bool) -> None:
    lists = changed_users({"/etc/passwd": ROOT_LINE + NOBODY_LINE}, {"/etc/passwd": agents})
    assert lists == (["/etc/passwd"] if changed else [])


def test_settings_of_the_image_that_load_code_void_a_reward_where_they_are_the_agents() -> None:
    changes = [FileChange("/etc/pam.d/su", "changed")]
    assert changed_programs(changes, DECISIVE) == ["/etc/pam.d/su"]
