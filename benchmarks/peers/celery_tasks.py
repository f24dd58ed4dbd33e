"""Plain Celery: `python celery_tasks.py COUNT` enqueues, `celery -A celery_tasks worker` works."""

# mypy: ignore-errors

import os
import sys

from celery import Celery

app = Celery("peer", broker=os.environ["BENCHMARK_BROKER"])
app.conf.update(task_ignore_result=True)


@app.task(name="noop")
def noop() -> None:
    """Nothing."""


if __name__ == "__main__":
    with app.producer_pool.acquire() as producer:
        for _ in range(int(sys.argv[1])):
            noop.apply_async(producer=producer)
