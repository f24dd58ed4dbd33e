"""Datasets in the rarer formats, and on the Hugging Face hub."""

from hermes_queue.plugins import Plugin

PLUGIN = Plugin(
    name="datasets",
    purpose="Datasets as Hugging Face folders, preferences, token ids, in OpenAI's form and more.",
    code_lines=900,
    extensions={
        "sink": {
            "hf": "hermes_plugins.datasets.hf:FORMAT",
            "openai": "hermes_plugins.datasets.openai:FORMAT",
            "preferences": "hermes_plugins.datasets.preferences:FORMAT",
            "swe_smith": "hermes_plugins.datasets.swe_smith:FORMAT",
            "tokens": "hermes_plugins.datasets.tokens:FORMAT",
        },
    },
)
