"""The agent's module answers in a process of its own, which cannot write the reward."""

import json
import subprocess

ASK = """
import json, sys
sys.path.insert(0, "/app")
import roman
answers = []
for name, argument in json.load(sys.stdin):
    try:
        answers.append(getattr(roman, name)(argument))
    except ValueError:
        answers.append("ValueError")
json.dump(answers, sys.stdout)
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]


def answers(*questions):
    command = [*NOBODY, "python3", "-I", "-c", ASK]
    done = subprocess.run(
        command, input=json.dumps(questions), capture_output=True, text=True, cwd="/", timeout=60
    )
    return json.loads(done.stdout)


def test_numbers():
    numbers = {
        1: "I",
        4: "IV",
        9: "IX",
        14: "XIV",
        40: "XL",
        90: "XC",
        400: "CD",
        1994: "MCMXCIV",
        3999: "MMMCMXCIX",
    }
    assert answers(*(("to_roman", n) for n in numbers)) == list(numbers.values())
    assert answers(*(("from_roman", text) for text in numbers.values())) == list(numbers)


def test_what_is_no_number():
    wrong = [
        ("to_roman", 0),
        ("to_roman", 4000),
        ("to_roman", -1),
        ("to_roman", 1.5),
        ("from_roman", "IIII"),
    ]
    wrong += [("from_roman", ""), ("from_roman", "iv"), ("from_roman", "IM"), ("from_roman", "VX")]
    assert answers(*wrong) == ["ValueError"] * len(wrong)
